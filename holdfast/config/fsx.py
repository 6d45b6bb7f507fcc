"""Sizing of FSx for Lustre: checkpoints in; size, throughput and the time of one save out.

Everything here is computed from what AWS publishes (sizes, MB/s per TiB); nothing was measured on a file system.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config import prices, sizing
from holdfast.config.schema import RunConfig

SIZE_STEP_GIB = 2400
SMALLEST_GIB = 1200
LARGEST_GIB = 1_000_000
THROUGHPUTS = (125, 250, 500, 1000)
EFA_SIZE_STEP_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""With EFA, sizes are multiples of this, by MB/s per TiB."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One file system that can be ordered. mbps_per_tib None: SCRATCH_2; otherwise PERSISTENT_2."""

    capacity_gib: int
    mbps_per_tib: int | None

    @property
    def bytes_per_s(self) -> float:
        """Throughput that AWS promises."""
        return sizing.lustre_bytes_per_s(self.capacity_gib, self.mbps_per_tib)

    @property
    def monthly_usd(self) -> float:
        """Estimate (prices.py)."""
        return prices.lustre_monthly_usd(self.capacity_gib, self.mbps_per_tib)

    def __str__(self) -> str:
        kind = "SCRATCH_2" if self.mbps_per_tib is None else "PERSISTENT_2"
        speed = "" if self.mbps_per_tib is None else f", storage.throughput_mbps_per_tib: {self.mbps_per_tib}"
        return f"storage.deployment_type: {kind}, storage.capacity_gib: {self.capacity_gib}{speed}"


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run asks of its file system. interval_s: time between two saves; None if it is not known."""

    checkpoint_bytes: int
    kept: int
    interval_s: float | None

    def save_s(self, tier: Tier) -> float:
        """Seconds that one background write takes at best."""
        return self.checkpoint_bytes / tier.bytes_per_s

    def room(self, tier: Tier) -> bool:
        """Whether all kept checkpoints fit."""
        return self.checkpoint_bytes * self.kept <= tier.capacity_gib * sizing.GIB

    def in_time(self, tier: Tier) -> bool:
        """Whether a save is over before the next one begins; true where the interval is not known."""
        return self.interval_s is None or self.save_s(tier) < self.interval_s


def need_of(config: RunConfig) -> Need:
    """What the configured model, interval and retention ask for."""
    step = config.training.expected_step_s
    return Need(
        checkpoint_bytes=sizing.checkpoint_bytes(config),
        kept=sizing.kept_checkpoints(config),
        interval_s=None if step is None else max(step, config.training.min_step_s) * config.checkpoint.interval_steps,
    )


def tier_of(config: RunConfig) -> Tier:
    """The configured file system."""
    return Tier(capacity_gib=config.storage.capacity_gib, mbps_per_tib=config.storage.throughput_mbps_per_tib)


def cheapest(need: Need, *, persistent: bool, efa: bool = False) -> Tier | None:
    """The cheapest file system that has room and keeps up; with persistent or efa, of PERSISTENT_2 only.

    None if no size does.
    """
    kinds: tuple[int | None, ...] = THROUGHPUTS if persistent or efa else (None, *THROUGHPUTS)
    found = [tier for kind in kinds if (tier := _smallest(need, kind, efa=efa))]
    return min(found, key=lambda tier: (tier.monthly_usd, tier.capacity_gib), default=None)


def _smallest(need: Need, mbps_per_tib: int | None, *, efa: bool) -> Tier | None:
    if efa and mbps_per_tib is not None:
        step = EFA_SIZE_STEP_GIB[mbps_per_tib]
        sizes = [*range(step, LARGEST_GIB + 1, step)]
    else:
        sizes = [SMALLEST_GIB, *range(SIZE_STEP_GIB, LARGEST_GIB + 1, SIZE_STEP_GIB)]
    tiers = (Tier(capacity_gib=size, mbps_per_tib=mbps_per_tib) for size in sizes)
    return next((tier for tier in tiers if need.room(tier) and need.in_time(tier)), None)


def slow_write(config: RunConfig) -> str | None:
    """Why a background write outlasts the time between saves: the numbers and the keys they rest on. None if not."""
    need, tier = need_of(config), tier_of(config)
    if config.checkpoint.mode != "async" or need.in_time(tier):
        return None
    s = config.storage
    return (
        f"a save of {need.checkpoint_bytes / 1e9:.0f} GB takes {need.save_s(tier):.0f} s (computed: "
        f"{tier.bytes_per_s / 1e6:.0f} MB/s from storage.deployment_type={s.deployment_type}, "
        f"storage.capacity_gib={s.capacity_gib}, storage.throughput_mbps_per_tib={s.throughput_mbps_per_tib}), and the "
        f"next one begins after {need.interval_s or 0:.0f} s "
        f"(training.expected_step_s={config.training.expected_step_s}, checkpoint.mode=async)"
    )


def remedy(config: RunConfig) -> str:
    """What to write instead of a file system that is too slow."""
    need, tier = need_of(config), tier_of(config)
    step = max(config.training.expected_step_s or 0.0, config.training.min_step_s)
    steps = int(need.save_s(tier) / step) + 1
    best = cheapest(need, persistent=config.storage.deployment_type == "PERSISTENT_2", efa=config.storage.fsx.efa)
    other = ""
    if best:
        price = f"a save in {need.save_s(best):.0f} s, about ${best.monthly_usd:,.0f} a month"
        other = f"use the cheapest that keeps up, {best} ({price}); or "
    return f"{other}save every {steps} steps or more; or give a reason in storage.accept_slow_writes"
