"""What a deployment adds to a run's config: ids that exist before it. They come from CDK context, not from a profile.

`read(context)` gives both the config and these, from what `-c key=value` (always text) or cdk.json (typed) say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, ValidationError

from holdfast.config import ConfigError, Problem, RunConfig, load_profile
from holdfast.config.section import Section

DEFAULT_PROFILE = "llama3-8b-p5x2"
_DEFAULT_IMAGE: str = RunConfig.model_fields["image"].default


class Deployment(Section):
    """Ids of an account, and one choice. All are optional; which are needed depends on the config."""

    admin_role_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")] | None = None
    """IAM role that becomes cluster administrator. Without it the stack asks for it as the parameter AdminRoleArn."""
    capacity_reservation_id: Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")] | None = None
    """On-Demand Capacity Reservation or Capacity Block, like cr-0123456789abcdef0; for aws.capacity.mode reservation
    and capacity_block."""
    capacity_ends_at: AwareDatetime | None = None
    """When the Capacity Block ends, like 2026-12-24T11:30:00Z. EKS drains its nodes from 40 minutes before."""
    budget_email: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")] | None = None
    """Whom the AWS Budget of cost.monthly_budget_usd warns."""

    build_image: bool = False
    """Build the Dockerfile during `cdk deploy`, which then needs docker, instead of using the config's image."""

    @property
    def capacity_end(self) -> str | None:
        """capacity_ends_at in UTC, like 2026-12-24T11:30:00Z."""
        return self.capacity_ends_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self.capacity_ends_at else None


def block_notices(config: RunConfig, deployment: Deployment, now: datetime) -> list[str]:
    """What is accepted, but should be known: a block's end that is missing or past. Not refused: the nodes of a block
    that is over are destroyed with the same context."""
    if config.aws.capacity.mode != "capacity_block":
        return []
    if deployment.capacity_ends_at is None:
        return ["capacity_ends_at is not given: the job will not save and leave before the block ends; EKS drains it"]
    if deployment.capacity_ends_at <= now:
        return [f"capacity_ends_at={deployment.capacity_end} is past: every pod of the job will leave at once"]
    return []


def read(context: Mapping[str, Any]) -> tuple[RunConfig, Deployment]:
    """The config and the deployment that CDK context describes. Raises ConfigError with every problem.

    Keys: `profile`; the fields of Deployment; any dotted key of the config (`cluster.nodes`); `set`, which holds
    several of those as `key=value` lines, as a list, or as a mapping. The CDK's own keys (with a colon or @) pass by.
    """
    ours = {key: value for key, value in context.items() if not _of_the_cdk(key) and value is not None}
    fields = {key: ours[key] for key in Deployment.model_fields if key in ours}
    problems = list(_unknown_keys(ours))
    deployment = Deployment()
    try:
        deployment = Deployment.model_validate(fields)
    except ValidationError as error:
        problems += [_problem(entry) for entry in error.errors(include_url=False)]
    config = None
    try:
        config = load_profile(str(ours.get("profile", DEFAULT_PROFILE)), _overrides(ours, problems))
    except ConfigError as error:
        problems += error.problems
    if config is not None and not problems:
        problems += _between(config, deployment)
    if problems or config is None:
        raise ConfigError(problems, source=f"CDK context, profile {ours.get('profile', DEFAULT_PROFILE)}")
    return config, deployment


def _of_the_cdk(key: str) -> bool:
    return ":" in key or key.startswith("@") or key == "cli-telemetry"


def _of_the_config(key: str) -> bool:
    return key.split(".")[0] in RunConfig.model_fields


def _unknown_keys(ours: Mapping[str, Any]) -> Iterator[Problem]:
    legal = ["profile", "set", *Deployment.model_fields]
    for key, value in ours.items():
        if key not in legal and not _of_the_config(key):
            near = get_close_matches(key, legal, n=1)
            fix = (
                f"did you mean {near[0]}?" if near else f"use one of: {', '.join(legal)}, or a dotted key of the config"
            )
            yield Problem(f"context {key}", value, "there is no such key", fix)


def _overrides(ours: Mapping[str, Any], problems: list[Problem]) -> list[str]:
    """`key=value` strings, which load_profile parses by the type of each field."""
    given = ours.get("set", "")
    found = [f"{key}={_text(value)}" for key, value in ours.items() if _of_the_config(key)]
    if isinstance(given, str):
        return found + [line.strip() for line in given.splitlines() if line.strip()]
    if isinstance(given, Mapping):
        return found + [f"{key}={_text(value)}" for key, value in given.items()]
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return found + given
    problems.append(
        Problem("context set", given, "it is neither text nor a list nor a mapping", "write key=value lines")
    )
    return found


def _text(value: Any) -> str:
    """A JSON value as it would stand on a command line: false, 4, null, ["a"]."""
    return value if isinstance(value, str) else json.dumps(value)


def _problem(entry: Mapping[str, Any]) -> Problem:
    name = str(entry["loc"][0])
    meaning = " ".join((Deployment.model_fields[name].description or "").split())
    why = "it is not what it should look like"
    if entry["type"] == "timezone_aware":
        why = "it names no time zone"
    elif entry["type"] == "string_type":
        why = "it is not text"
    return Problem(f"context {name}", entry["input"], why, f"it means: {meaning}")


def _between(c: RunConfig, d: Deployment) -> Iterator[Problem]:
    """Problems between the config and the deployment's ids."""
    if not c.instance.ec2:
        why = "it is a stand-in for this machine, so there is nothing to build on AWS"
        fix = f"choose a profile for AWS, like {DEFAULT_PROFILE}, or run this one with `holdfast run`"
        yield Problem("cluster.instance_type", c.cluster.instance_type, why, fix)
    mode, reservation = c.aws.capacity.mode, d.capacity_reservation_id
    if mode != "on_demand" and reservation is None:
        why = f"aws.capacity.mode={mode} needs the id of what was reserved"
        yield Problem("context capacity_reservation_id", None, why, "add -c capacity_reservation_id=cr-...")
    if mode == "on_demand" and reservation is not None:
        why = "aws.capacity.mode=on_demand would leave it unused, and it is paid for"
        fix = "add -c aws.capacity.mode=capacity_block (or reservation), or leave the id out"
        yield Problem("context capacity_reservation_id", reservation, why, fix)
    if d.build_image and c.image != _DEFAULT_IMAGE:
        why = f"image={c.image} is given as well"
        yield Problem("context build_image", True, why, "choose one")
    if mode != "capacity_block" and d.capacity_end is not None:
        why = f"aws.capacity.mode={mode} does not end by itself"
        yield Problem("context capacity_ends_at", d.capacity_end, why, "leave it out")
    budget = c.cost.monthly_budget_usd
    if budget is not None and d.budget_email is None:
        why = f"the budget of cost.monthly_budget_usd={budget:g} would warn nobody"
        yield Problem("context budget_email", None, why, "add -c budget_email=you@example.com")
    if budget is None and d.budget_email is not None:
        why = "there is no budget to warn about: cost.monthly_budget_usd is null"
        yield Problem("context budget_email", d.budget_email, why, "set cost.monthly_budget_usd, or leave it out")
