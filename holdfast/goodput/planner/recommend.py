"""The choice that a plan recommends: layers, then spares, then storage, and the best intervals for them.

What is compared is the price of a month's useful work, by the closed form; where it has no number (elastic jobs, very
high failure rates), by simulation with the same seeds for each choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.config import ConfigError, fsx, sizing
from holdfast.goodput.model import OutsideModelError
from holdfast.goodput.planner.judge import QUICK_FAULTS, QUICK_SEEDS, computed, simulated
from holdfast.goodput.planner.money import price_of_work
from holdfast.goodput.planner.setting import (
    LOCAL,
    SHARED,
    Choice,
    Setting,
    configured,
    durations_of,
    fleet_of,
    policy_of,
    switched,
    with_intervals,
)
from holdfast.goodput.simulate import best_intervals

WORTH = 0.001
"""Goodput that a layer, a local tier or a standby must gain to be recommended: each is one more thing to go wrong."""
MOST_SPARES = 64
"""Limit of recovery.spares."""
_MOST_PASSES = 4
"""What a layer gains depends a little on spares and storage, and the other way round; two passes are the rule."""
_NO_BETTER = 2
"""So many further spares in a row must not pay before the search ends: the first may bring less than the second."""
_DOUBLINGS = 6
"""File systems are tried up to 64 times the smallest that has room."""


@dataclass(frozen=True)
class Recommendation:
    """The choice, and what it could not decide."""

    choice: Choice
    notes: tuple[str, ...] = ()


def recommend(setting: Setting) -> Recommendation:
    """The cheapest choice for the same work. The setting must be one that can be judged at all."""
    choice, note = tuned(setting, configured(setting))
    for _ in range(_MOST_PASSES):
        before = choice
        choice = _spares(setting, _layers(setting, choice))
        if setting.has_storage:
            choice = _storage(setting, choice)
        if choice == before:
            break
    return Recommendation(choice, (note,) if note else ())


def tuned(setting: Setting, choice: Choice) -> tuple[Choice, str]:
    """The choice with the best interval of each tier it has; with its own intervals and a reason if none is best."""
    local = 1 if choice.local_steps is not None else None
    policy = policy_of(setting, replace(choice, local_steps=local, shared_steps=1))
    try:
        found = best_intervals(durations_of(setting, choice), fleet_of(setting, choice), policy)
    except OutsideModelError:
        return choice, "it fails so much faster than it recovers that no interval helps, so they stay as configured"
    except ValueError:
        why = "no failure goes back to one of the tiers, or its saves cost nothing"
        return choice, f"no interval is the best one ({why}), so they stay as configured"
    return with_intervals(choice, _within_the_run(setting, found)), ""


def _within_the_run(setting: Setting, found: dict[str, int]) -> dict[str, int]:
    """An interval beyond the last step says nothing else than the last step, where there is a save anyhow."""
    most = setting.config.training.steps
    if SHARED not in found or found[SHARED] <= most:
        return found
    local = found.get(LOCAL)
    if local is None:
        return {SHARED: most}
    local = min(local, most)
    return {LOCAL: local, SHARED: max(local, most // local * local)}


def _layers(setting: Setting, choice: Choice) -> Choice:
    choice = replace(choice, in_job=True)
    for switch in ("in_process", "standby"):
        off, on = (switched(choice, switch, value) for value in (False, True))
        choice = on if _goodput(setting, on) - _goodput(setting, off) >= WORTH else off
    if setting.may_be_local:
        off, _ = tuned(setting, replace(choice, local_steps=None))
        on, _ = tuned(setting, replace(choice, local_steps=1))
        choice = on if _goodput(setting, on) - _goodput(setting, off) >= WORTH else off
    choice, _ = tuned(setting, choice)
    return choice


def _spares(setting: Setting, choice: Choice) -> Choice:
    best, cheapest, worse = choice, math.inf, 0
    for spares in range(MOST_SPARES + 1):
        tried = replace(choice, spares=spares)
        price = _price(setting, tried)
        if price < cheapest:
            best, cheapest, worse = tried, price, 0
        else:
            worse += 1
        if worse > _NO_BETTER:
            break
    return best


def _storage(setting: Setting, choice: Choice) -> Choice:
    best, cheapest = choice, _price(setting, choice)
    for tier in file_systems(setting):
        tried, _ = tuned(setting, replace(choice, storage=tier))
        if _goodput(setting, tried) > 0 and (price := _price(setting, tried)) < cheapest:
            best, cheapest = tried, price
    return best


def file_systems(setting: Setting) -> Iterator[fsx.Tier]:
    """File systems that write a checkpoint within checkpoint.persist_timeout_s and have room for all that are kept.

    Of each kind: the smallest with room, and up to 64 times that.
    """
    limit_s = setting.config.checkpoint.persist_timeout_s
    base = configured(setting)
    for tier in _with_room(setting):
        if durations_of(setting, replace(base, storage=tier)).tiers[-1].save.background_s < limit_s:
            yield tier


def _with_room(setting: Setting) -> Iterator[fsx.Tier]:
    config = setting.config
    persistent = config.storage.deployment_type == "PERSISTENT_2" or config.storage.fsx.efa
    need = replace(fsx.need_of(config), interval_s=None)
    kinds: tuple[int | None, ...] = fsx.THROUGHPUTS if persistent else (None, *fsx.THROUGHPUTS)
    for kind in kinds:
        step = fsx.EFA_SIZE_STEP_GIB[kind] if config.storage.fsx.efa and kind is not None else fsx.SIZE_STEP_GIB
        size = max(step, math.ceil(need.checkpoint_bytes * need.kept / sizing.GIB / step) * step)
        smallest = fsx.Tier(capacity_gib=fsx.SMALLEST_GIB, mbps_per_tib=kind)
        if step == fsx.SIZE_STEP_GIB and need.room(smallest):
            yield smallest
        for _ in range(_DOUBLINGS + 1):
            if size > fsx.LARGEST_GIB:
                break
            yield fsx.Tier(capacity_gib=size, mbps_per_tib=kind)
            size *= 2


def _goodput(setting: Setting, choice: Choice) -> float:
    number, _ = computed(setting, choice)
    if number is not None:
        return number
    try:
        return simulated(setting, choice, QUICK_SEEDS, QUICK_FAULTS).goodput.mean
    except ConfigError:
        # It fails faster than it recovers.
        return 0.0


def _price(setting: Setting, choice: Choice) -> float:
    goodput = _goodput(setting, choice)
    return price_of_work(setting, choice, goodput) if goodput > 0 else math.inf
