"""Network interfaces of a GPU node, as data: which card and slot gets which kind of interface. Pure.

Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html for the layout `ena`;
github.com/terraform-aws-modules/terraform-aws-eks/pull/3196 for `efa`, which managed node groups are known to accept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.config.instances import Instance

Layout = Literal["efa", "ena"]


@dataclass(frozen=True, kw_only=True)
class Nic:
    """One interface. `card` and `device` are EC2's NetworkCardIndex and DeviceIndex."""

    card: int
    device: int
    kind: Literal["interface", "efa", "efa-only"]

    @property
    def is_primary(self) -> bool:
        """The one that carries the node's address and the pods' traffic."""
        return (self.card, self.device) == (0, 0)

    @property
    def is_efa(self) -> bool:
        """Whether it gives the node an EFA device."""
        return self.kind != "interface"


def interfaces(instance: Instance, layout: Layout) -> list[Nic]:
    """All interfaces of a node, the primary first.

    efa-only interfaces have no IP address: 32 of them take none from the subnet. The primary can never be one. Each
    card takes two interfaces (device 0 and 1); the layouts differ in which of them EFA gets.
    """
    if not instance.efa:
        return [Nic(card=0, device=0, kind="interface")]
    if layout == "efa":
        primary = Nic(card=0, device=0, kind="efa" if instance.card0_efa else "interface")
        others = [Nic(card=card, device=1, kind="efa-only") for card in range(1, instance.network_cards)]
    else:
        primary = Nic(card=0, device=0, kind="interface")
        others = [Nic(card=0, device=1, kind="efa-only")] if instance.card0_efa else []
        others += [Nic(card=card, device=0, kind="efa-only") for card in range(1, instance.network_cards)]
    room = instance.efa - primary.is_efa
    return [primary, *others[:room]]
