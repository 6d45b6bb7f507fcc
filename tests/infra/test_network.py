"""The network: what a later deployment may change without a conflict."""

from __future__ import annotations

from typing import Any

from tests.infra.assembly import Assembly
from tests.infra.conftest import Synth

SUBNET = "AWS::EC2::Subnet"
THREE = 'aws.zones=["us-west-2a","us-west-2b","us-west-2c"]'


def subnets(built: Assembly) -> dict[str, Any]:
    """Zone and addresses of each subnet, by logical id: a change of either replaces it."""
    found = built.all("Network", SUBNET)
    return {name: [one["Properties"][key] for key in ("AvailabilityZone", "CidrBlock")] for name, one in found.items()}


def test_a_zone_that_is_added_later_moves_no_subnet_and_meets_none(synth: Synth) -> None:
    two, three = (subnets(synth("llama3-8b-p5x2", *more)) for more in ([], [THREE]))
    assert len(two) == 4 and len(three) == 6 and two.items() <= three.items()
    assert len({addresses for _, addresses in three.values()}) == 6
