"""Our own stacks pass every rule, in every way they can be configured, and hold what the rules look at."""

from __future__ import annotations

import pytest

from infra.rules import assembly as view
from infra.rules.catalog import findings
from infra.rules.reading import read_assembly
from tests.infra.assembly import Assembly
from tests.infra.conftest import Synth

P5, G5 = "llama3-8b-p5x2", "gpt2-g5x2"
RESERVED = "capacity_reservation_id=cr-0123456789abcdef0"
LARGE = "storage={deployment_type: PERSISTENT_2, capacity_gib: 4800, throughput_mbps_per_tib: 1000, fsx: {efa: true}}"


def faults(assembly: Assembly) -> list[str]:
    """`HF001 path: what is wrong` for all that the rules find."""
    read = read_assembly(assembly.folder.glob("*.template.json"))
    return [f"{rule.id} {finding.resource.path}: {finding.wrong}" for rule, finding in findings(read)]


def test_the_stacks_of_a_profile_pass_every_rule(assembly: Assembly) -> None:
    assert faults(assembly) == []


def test_the_rules_find_what_they_look_at(p5: Assembly) -> None:
    read = read_assembly(p5.folder.glob("*.template.json"))
    kinds = (
        view.ACCESS_ENTRY, view.ADD_ON, view.CLUSTER, view.FILE_SYSTEM, view.LAUNCH_TEMPLATE, view.MANIFEST,
        view.NODE_GROUP, view.SECURITY_GROUP,
    )  # fmt: skip
    assert [kind for kind in kinds if not read.of(kind)] == []
    objects = [entry["kind"] for manifest in read.of(view.MANIFEST) for entry in view.objects_of(manifest)]
    assert {"DaemonSet", "PersistentVolume"} <= set(objects)


@pytest.mark.parametrize(
    "profile, settings",
    [
        (P5, ("aws.nic_layout=ena",)),
        (P5, ("aws.capacity.mode=capacity_block", RESERVED)),
        (P5, ("aws.capacity.mode=reservation", RESERVED)),
        (P5, (LARGE, "aws.zones=[us-west-2a, us-west-2b, us-west-2c]", "aws.gpu_zone=us-west-2c")),
        (P5, ("cluster.instance_type=p4d.24xlarge", "aws.apply_manifests=false")),
        (P5, ("cluster.instance_type=p5en.48xlarge", "cost.expires_at=2027-01-31", "cost.owner=me")),
        (G5, ("storage.fsx.s3_checkpoints=true", "aws.allow_data_loss=true")),
        (G5, ("aws.endpoint=allow_listed", "aws.allowed_cidrs=[203.0.113.0/24]", "aws.production=true")),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value)[:60],
)
def test_a_variant_passes_every_rule(synth: Synth, profile: str, settings: tuple[str, ...]) -> None:
    assert faults(synth(profile, *settings)) == []
