"""What each way of buying GPU nodes needs in launch template and node group, and nothing that it must not have.

on_demand       group ON_DEMAND; a placement group if one is wanted
reservation     group ON_DEMAND, template with the target; no placement group: it would have to be the reservation's own
capacity_block  group CAPACITY_BLOCK, template with target, market type and instance type; EC2 places the block itself
"""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_ec2 as ec2

from holdfast.config.aws import Capacity

_Template = ec2.CfnLaunchTemplate


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Properties that follow from the capacity mode; None is one that must be absent."""

    capacity_type: str
    placement_group: bool
    reservation: ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None = None
    market: ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None = None


def purchase(capacity: Capacity, reservation_id: str | None) -> Purchase:
    """`reservation_id` is there exactly when the mode is not on_demand (infra/deployment.py sees to it)."""
    if capacity.mode == "on_demand":
        return Purchase(capacity_type="ON_DEMAND", placement_group=capacity.placement_group)
    if reservation_id is None:
        raise ValueError(f"capacity mode {capacity.mode} without a reservation id")
    target = _Template.CapacityReservationTargetProperty(capacity_reservation_id=reservation_id)
    reservation = _Template.CapacityReservationSpecificationProperty(capacity_reservation_target=target)
    if capacity.mode == "reservation":
        return Purchase(capacity_type="ON_DEMAND", placement_group=False, reservation=reservation)
    market = _Template.InstanceMarketOptionsProperty(market_type="capacity-block")
    return Purchase(capacity_type="CAPACITY_BLOCK", placement_group=False, reservation=reservation, market=market)
