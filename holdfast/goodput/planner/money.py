"""What a choice costs, and what its lost time costs. A month is 730 hours; prices are the config's or estimates."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config import prices
from holdfast.goodput.planner.setting import Choice, Setting

MONTH_H = prices.HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Per month of training. Dollars are None where the node type has no price."""

    lost_gpu_hours: float
    """GPU hours (rank hours on a CPU) of training nodes that did not end up in the result."""
    lost_usd: float | None
    """The price of those."""
    spares_usd: float | None
    """Price of the idle spares."""
    storage_usd: float | None
    """Price of the file system."""


def cost_of(setting: Setting, choice: Choice, goodput: float) -> Cost:
    """What a month with this goodput costs."""
    lost_hours = (1 - goodput) * setting.nodes * MONTH_H
    price = node_usd(setting)
    return Cost(
        lost_gpu_hours=lost_hours * setting.config.cluster.ranks_per_node,
        lost_usd=None if price is None else lost_hours * price,
        spares_usd=None if price is None else choice.spares * MONTH_H * price,
        storage_usd=choice.storage.monthly_usd if setting.has_storage else None,
    )


def gpu_or_rank(setting: Setting) -> str:
    """What the hours of a cost are hours of."""
    return "GPU" if setting.config.device == "cuda" else "rank"


def node_usd(setting: Setting) -> float | None:
    """Price of a node and hour; None if there is none, as for this machine."""
    return prices.node_hourly_usd(setting.config) or None


def price_of_work(setting: Setting, choice: Choice, goodput: float) -> float:
    """Cost of a month's useful work: what the cluster costs in a month / goodput. What a plan minimizes.

    In dollars; in node-months where the node has no price.
    """
    price = node_usd(setting)
    nodes = setting.nodes + choice.spares
    if price is None:
        return nodes / goodput
    storage = choice.storage.monthly_usd if setting.has_storage else 0.0
    return (nodes * price * MONTH_H + storage) / goodput


def saved_gpu_hours(setting: Setting, base: tuple[Choice, float], changed: tuple[Choice, float]) -> float | None:
    """GPU hours (rank hours on a CPU) that a change saves per month if the same work is done, spares counted; below 0:
    it takes more. (choice, goodput) of the profile and of the change; None where either trains at no time."""
    if not min(base[1], changed[1]) > 0:
        return None
    (before, old), (after, new) = base, changed
    nodes = setting.nodes + before.spares - (setting.nodes + after.spares) * old / new
    return nodes * MONTH_H * setting.config.cluster.ranks_per_node


def saved_usd(setting: Setting, base: tuple[Choice, float], changed: tuple[Choice, float]) -> float | None:
    """Dollars that a change saves per month if the same work is done; below 0: it costs more. None without a price."""
    if node_usd(setting) is None or not min(base[1], changed[1]) > 0:
        return None
    return base[1] * (price_of_work(setting, *base) - price_of_work(setting, *changed))
