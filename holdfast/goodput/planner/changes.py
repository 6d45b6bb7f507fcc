"""What each single change of the profile would buy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.config import fsx
from holdfast.goodput.planner.judge import Judged, Simulated, judge, spread_of
from holdfast.goodput.planner.money import saved_gpu_hours, saved_usd
from holdfast.goodput.planner.recommend import MOST_SPARES, tuned
from holdfast.goodput.planner.setting import Choice, Setting, switched


@dataclass(frozen=True)
class Change:
    """One change and its effect."""

    name: str
    judged: Judged
    gain: float | None
    """Goodput gained (points / 100) over the profile as it is, both by the same method. None outside the model."""
    simulated: Simulated | None
    """Spread over seeds; None outside the model. The same faults strike every change and the profile as it is."""
    saved_gpu_hours: float | None
    """GPU hours (rank hours on a CPU) that the same work takes less per month, those of spares too. None outside the
    model."""
    saved_usd: float | None
    """Dollars saved per month for the same work; None without a price."""


def changes_of(setting: Setting, base: Choice, recommended: Choice) -> list[Change]:
    """One row per change of `base`, then all that is recommended at once."""
    by_method: dict[bool, Judged] = {}
    found = []
    for name, choice in [*_single(setting, base), ("all that is recommended", recommended)]:
        judged = judge(setting, choice)
        simulate = judged.how == "simulated"
        if simulate not in by_method:
            by_method[simulate] = judge(setting, base, by_simulation=simulate)
        reference = by_method[simulate]
        if reference.how == "simulated" and not simulate:
            # Never a computed number beside a simulated one: they may differ by more than the change does.
            judged = judge(setting, choice, by_simulation=True)
        found.append(_change(setting, name, reference, judged))
    return found


def _change(setting: Setting, name: str, reference: Judged, judged: Judged) -> Change:
    if reference.goodput is None or judged.goodput is None:
        return Change(name, judged, gain=None, simulated=None, saved_gpu_hours=None, saved_usd=None)
    base, changed = (reference.choice, reference.goodput), (judged.choice, judged.goodput)
    return Change(
        name,
        judged,
        gain=judged.goodput - reference.goodput,
        simulated=spread_of(setting, judged),
        saved_gpu_hours=saved_gpu_hours(setting, base, changed),
        saved_usd=saved_usd(setting, base, changed),
    )


def _single(setting: Setting, base: Choice) -> Iterator[tuple[str, Choice]]:
    yield from _intervals(setting, base)
    yield "one spare more", replace(base, spares=min(MOST_SPARES, base.spares + 1))
    if base.spares:
        yield "one spare less", replace(base, spares=base.spares - 1)
    for switch in ("in_process", "in_job", "standby"):
        value = not getattr(base, switch)
        yield f"recovery.{switch} {'on' if value else 'off'}", switched(base, switch, value)
    if setting.has_storage:
        bigger = _bigger(setting, base.storage)
        yield f"twice the file system ({bigger.capacity_gib} GiB)", replace(base, storage=bigger)


def _intervals(setting: Setting, base: Choice) -> Iterator[tuple[str, Choice]]:
    best, note = tuned(setting, base)
    if not note:
        yield f"best intervals ({described(best)})", best
    unit = base.local_steps or 1
    half = max(1, base.shared_steps // 2 // unit) * unit
    yield f"a shared save every {half} steps", replace(base, shared_steps=half)
    yield f"a shared save every {2 * base.shared_steps} steps", replace(base, shared_steps=2 * base.shared_steps)
    if base.local_steps is not None:
        yield "no local tier", replace(base, local_steps=None)
    elif setting.may_be_local:
        with_tier, note = tuned(setting, replace(base, local_steps=1))
        if not note:
            yield f"a local tier ({described(with_tier)})", with_tier


def _bigger(setting: Setting, tier: fsx.Tier) -> fsx.Tier:
    step = fsx.SIZE_STEP_GIB
    if setting.config.storage.fsx.efa and tier.mbps_per_tib is not None:
        step = fsx.EFA_SIZE_STEP_GIB[tier.mbps_per_tib]
    size = min(fsx.LARGEST_GIB // step * step, max(step, 2 * tier.capacity_gib // step * step))
    return replace(tier, capacity_gib=size)


def described(choice: Choice) -> str:
    """Its intervals in words."""
    shared = f"shared every {choice.shared_steps} steps"
    return shared if choice.local_steps is None else f"local every {choice.local_steps}, {shared}"
