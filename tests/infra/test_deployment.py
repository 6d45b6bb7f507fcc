"""CDK context -> config and deployment (case-27): text and JSON mean the same, and every mistake is named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.config import ConfigError, RunConfig
from holdfast.config.fields import all_fields, dotted
from infra.deployment import DEFAULT_PROFILE, Deployment, block_notices, read
from tests.infra.conftest import Synth

ID = "cr-0123456789abcdef0"
BLOCK = {"aws.capacity.mode": "capacity_block", "capacity_reservation_id": ID}
PLAIN = RunConfig.model_fields
SWITCHES = [dotted(loc) for loc, field in all_fields() if field.annotation is bool]


def problems(context: dict[str, Any]) -> list[str]:
    """What is wrong with a context, one line for each problem."""
    with pytest.raises(ConfigError) as caught:
        read(context)
    return [str(problem) for problem in caught.value.problems]


def outcome(context: dict[str, Any]) -> Any:
    """The config, or the keys that are refused: some switches are refused on their own."""
    try:
        return read(context)
    except ConfigError as error:
        return [problem.key for problem in error.problems]


def test_a_blocks_end_that_is_missing_or_past_is_told_and_not_refused() -> None:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    (missing,) = block_notices(*read(BLOCK), now)
    assert missing.startswith("capacity_ends_at is not given")
    (past,) = block_notices(*read(BLOCK | {"capacity_ends_at": "2026-12-01T00:00:00Z"}), now)
    assert past == "capacity_ends_at=2026-12-01T00:00:00Z is past: every pod of the job will leave at once"
    assert (
        block_notices(*read(BLOCK | {"capacity_ends_at": "2026-12-01T00:00:01Z"}), now)
        == block_notices(*read({}), now)
        == []
    )


def test_no_context_is_the_articles_profile() -> None:
    config, deployment = read({})
    assert config.name == DEFAULT_PROFILE and deployment == Deployment()


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_means_the_same_as_text_and_as_json(key: str, value: bool) -> None:
    text = str(value).lower()
    assert (
        outcome({key: text})
        == outcome({key: value})
        == outcome({"set": {key: value}})
        == outcome({"set": f"{key}={text}"})
    )


@pytest.mark.parametrize("key", ["cluster.nodes", "recovery.spares", "aws.capacity.max_nodes", "training.steps"])
def test_a_number_means_the_same_as_text_and_as_json(key: str) -> None:
    assert outcome({key: "4"}) == outcome({key: 4}) == outcome({"set": [f"{key}=4"]})


def test_text_and_json_give_equal_templates(synth: Synth) -> None:
    text = synth("gpt2-g5x2", "aws.production=false", "aws.capacity.desired_nodes=1", "cost.max_hourly_usd=null")
    assert text.templates == synth("gpt2-g5x2", "set=aws.production=False\naws.capacity.desired_nodes=1").templates
    assert text.one("Gpu", "AWS::EKS::Nodegroup")["ScalingConfig"]["DesiredSize"] == 1


def test_sections_lists_and_null_may_be_json() -> None:
    config, _ = read({"cluster": {"nodes": 1}, "aws.zones": ["us-west-2a", "us-west-2c"], "cost.max_hourly_usd": None})
    assert config.cluster.nodes == 1 and config.cluster.instance_type == "p5.48xlarge"
    assert config.aws.zones == ("us-west-2a", "us-west-2c")


@pytest.mark.parametrize("value", ["maybe", "4.5", 4.5, "0", 0, "-2", -2, True])
def test_a_count_of_nodes_that_is_none_is_refused_by_name(value: Any) -> None:
    assert [line for line in problems({"cluster.nodes": value}) if line.startswith("cluster.nodes = ")]


@pytest.mark.parametrize(
    ("context", "says"),
    [
        ({"profle": "x"}, "context profle = 'x': there is no such key. Did you mean profile?"),
        ({"colour": "red"}, "Use one of: profile, set, admin_role_arn"),
        ({"cluster.node": "2"}, "cluster.node = '2': there is no such key. Did you mean cluster.nodes?"),
        ({"profile": "llama"}, "profile = 'llama': there is no such profile"),
        ({"set": 4}, "context set = 4: it is neither text nor a list nor a mapping"),
        ({"set": "cluster.nodes"}, "it is not key=value"),
        ({"admin_role_arn": "Admin"}, "context admin_role_arn = 'Admin': "),
        ({**BLOCK, "capacity_reservation_id": "cr-12"}, "context capacity_reservation_id = 'cr-12': "),
        ({**BLOCK, "capacity_ends_at": "2026-12-24T11:30:00"}, "it names no time zone"),
        ({**BLOCK, "capacity_ends_at": "soon"}, "context capacity_ends_at = 'soon': "),
        ({"aws.capacity.mode": "capacity_block"}, "needs the id of what was reserved"),
        ({"aws.capacity.mode": "reservation"}, "add -c capacity_reservation_id=cr-..."),
        ({"capacity_reservation_id": ID}, "aws.capacity.mode=on_demand would leave it unused"),
        ({"capacity_ends_at": "2026-12-24T11:30:00Z"}, "does not end by itself"),
        ({"cost.monthly_budget_usd": 500}, "context budget_email = None"),
        ({"budget_email": "a@example.com"}, "there is no budget to warn about"),
        ({"build_image": "perhaps"}, "context build_image = 'perhaps': "),
        ({"build_image": True, "image": f"x@sha256:{'a' * 64}"}, "context build_image = True: image="),
        ({"profile": "cpu-demo"}, "there is nothing to build on AWS"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(context: dict[str, Any], says: str) -> None:
    assert says.lower() in "\n".join(problems(context)).lower()


def test_all_mistakes_are_told_at_once() -> None:
    found = problems({"cluster.nodes": "-1", "admin_role_arn": "x", "colour": "red", "storage.capacity_gib": 1300})
    assert len(found) == 4


def test_keys_of_the_cdk_pass_by() -> None:
    read({"aws:cdk:bundling-stacks": ["**"], "@aws-cdk/core:checkSecretUsage": True, "cli-telemetry": False})


def test_an_image_in_the_context_is_that_of_the_config(synth: Synth) -> None:
    image = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/holdfast@sha256:{'a' * 64}"
    built = synth("gpt2-g5x2", f"image={image}", "aws.apply_manifests=false")
    assert built.config.image == built.templates["Cluster"]["Outputs"]["TrainerImage"]["Value"] == image


def test_the_image_can_be_built_by_the_deployment_without_docker_at_synthesis(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "build_image=true", "aws.apply_manifests=false")
    uri = built.templates["Cluster"]["Outputs"]["TrainerImage"]["Value"]
    assert "container-assets" in str(uri)
    assert "TrainerImage" not in synth("gpt2-g5x2", "build_image=false").templates["Cluster"]["Outputs"]


def test_every_field_of_a_deployment_may_be_left_out() -> None:
    assert not [field for field in Deployment.model_fields.values() if field.is_required()]
    assert not set(Deployment.model_fields) & set(PLAIN), "a context key must mean one thing"
