"""Ways of buying GPU nodes (case-22): each with all the fields that it needs and none that it must not have."""

from __future__ import annotations

import pytest

from holdfast.config.aws import Capacity
from infra.capacity import purchase
from tests.infra.assembly import NODEGROUP, Assembly
from tests.infra.conftest import Synth

ID = "cr-0123456789abcdef0"
TARGET = {"CapacityReservationTarget": {"CapacityReservationId": ID}}


def bought(synth: Synth, mode: str) -> Assembly:
    settings = [f"aws.capacity.mode={mode}", f"capacity_reservation_id={ID}", "aws.apply_manifests=false"]
    return synth("llama3-8b-p5x2", *settings)


def test_on_demand_names_no_reservation_and_no_market(assembly: Assembly) -> None:
    assert assembly.one("Gpu", NODEGROUP)["CapacityType"] == "ON_DEMAND"
    assert not {"CapacityReservationSpecification", "InstanceMarketOptions"} & set(assembly.launch_data)


def test_on_demand_nodes_share_a_cluster_placement_group(assembly: Assembly) -> None:
    (group,) = assembly.all("Gpu", "AWS::EC2::PlacementGroup")
    assert assembly.one("Gpu", "AWS::EC2::PlacementGroup")["Strategy"] == "cluster"
    assert assembly.launch_data["Placement"] == {"GroupName": {"Ref": group}}


def test_the_placement_group_can_be_left_out(synth: Synth) -> None:
    built = synth("gpt2-g5x2", "aws.capacity.placement_group=false", "aws.apply_manifests=false")
    assert not built.all("Gpu", "AWS::EC2::PlacementGroup") and "Placement" not in built.launch_data


def test_a_capacity_block_has_type_market_target_and_instance_type(synth: Synth) -> None:
    built = bought(synth, "capacity_block")
    assert built.one("Gpu", NODEGROUP)["CapacityType"] == "CAPACITY_BLOCK"
    data = built.launch_data
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["CapacityReservationSpecification"] == TARGET
    assert data["InstanceType"] == "p5.48xlarge"
    assert not built.all("Gpu", "AWS::EC2::PlacementGroup") and "Placement" not in data


def test_a_reservation_has_the_target_and_no_market(synth: Synth) -> None:
    built = bought(synth, "reservation")
    assert built.one("Gpu", NODEGROUP)["CapacityType"] == "ON_DEMAND"
    assert built.launch_data["CapacityReservationSpecification"] == TARGET
    assert "InstanceMarketOptions" not in built.launch_data and "Placement" not in built.launch_data


def test_the_end_of_a_block_is_an_output(synth: Synth) -> None:
    settings = ["aws.capacity.mode=capacity_block", f"capacity_reservation_id={ID}", "aws.apply_manifests=false"]
    built = synth("llama3-8b-p5x2", *settings, "capacity_ends_at=2026-12-24T12:30:00+01:00")
    assert built.templates["Gpu"]["Outputs"]["CapacityEndsAt"]["Value"] == "2026-12-24T11:30:00Z"


def test_a_mode_without_its_reservation_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="without a reservation id"):
        purchase(Capacity(mode="reservation"), None)
