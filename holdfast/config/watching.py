"""How closely ranks and nodes are watched, and what is kept of their output. Part of the section `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from holdfast.config.problems import Problem
from holdfast.config.section import Real, Seconds, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig


class Watching(Section):
    """Learned limits, health of nodes, logs of ranks."""

    learn_step_timeout: bool = True
    """Lower the step's limit to step_timeout_factor x the longest step seen in this run, as far as
    step_timeout_floor_s; never raise it. So a hang is seen after seconds, with a step_section_timeout_s that is safe
    for steps nobody has measured."""
    step_timeout_factor: Annotated[Real, Field(ge=2, le=1000)] = 5.0
    """Learned limit of a step, as a multiple of the longest step seen. NVRx's own default."""
    step_timeout_floor_s: Seconds = 120
    """A learned limit of a step is at least this: a pause that is no hang (a debugger, a slow file, a busy host) may
    last so long."""
    step_timeout_after_steps: Annotated[Whole, Field(ge=1)] = 20
    """Steps, without those of recovery.warmup_steps, that must have been seen before their limit is lowered."""
    spare_check_interval_s: Seconds = 300
    """How often a pod without ranks, a hot spare, checks that its node is still fit to train."""
    unfit_wait_s: Seconds = 30
    """A pod on an unfit node looks again for so long before it ends with 1: a new one would come to the same node at
    once, and some causes pass."""
    straggler_share: Annotated[Real, Field(gt=0, lt=1)] | None = 0.2
    """A rank is reported as slow when the others wait for it in more than this share of every step, over 30 steps.
    Null: ranks are not compared."""
    log_kib_per_rank: Annotated[Whole, Field(ge=64, le=1_048_576)] = 4096
    """Output that is kept of each rank and launcher cycle in `logs/` of the run directory, in KiB; at least the last
    half of it."""
    log_cycles: Annotated[Whole, Field(ge=1, le=10_000)] = 50
    """Launcher cycles whose logs are kept; those of older ones are deleted."""


def watching_problems(c: RunConfig) -> Iterator[Problem]:
    """What does not fit together."""
    r = c.recovery
    if r.in_job and r.in_process and r.learn_step_timeout and r.step_timeout_floor_s <= r.in_process_hard_timeout_s:
        hard = r.in_process_hard_timeout_s
        why = f"it must exceed recovery.in_process_hard_timeout_s={hard:g}, or layer 2 acts before layer 1"
        fix = f"use more than {hard:g}, or recovery.learn_step_timeout: false"
        yield Problem("recovery.step_timeout_floor_s", r.step_timeout_floor_s, why, fix)
