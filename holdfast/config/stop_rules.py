"""When a run is not restarted again, and what happens to a step whose loss is bad. Part of the section `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from holdfast.config.problems import Problem
from holdfast.config.section import Real, Seconds, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig


class StopRules(Section):
    """Rules of the recovery section that end a run (exit 93) or keep a bad update out of the weights."""

    same_step_limit: Annotated[Whole, Field(ge=2, le=100)] = 3
    """The same exception, or the same death (signal or exit code), at the same step on so many attempts ends the run
    (exit 93)."""
    max_restarts_without_progress: Annotated[Whole, Field(ge=1, le=1000)] = 10
    """So many restarts, one after the other, between which no newer step was committed end the run (exit 93). A restart
    after a newer commit begins the count anew, however many there were."""
    max_restarts_per_hour: Annotated[Whole, Field(ge=1, le=10_000)] = 120
    """More restarts than this within any 3600 s end the run (exit 93), progress or not: it then restarts more than it
    trains."""
    max_lost_s: Seconds | None = None
    """The run ends (exit 93) when its restarts have cost more seconds than this in all: for each, the time from the
    commit that it went back to, until it was restored. Null: no limit."""
    on_bad_loss: Literal["stop", "skip_batch", "roll_back"] = "stop"
    """When loss or gradient norm are not finite, or the loss spikes: stop ends the run (exit 93); skip_batch makes no
    update in this step; roll_back goes back to the newest commit and leaves out the batches after it, up to this one.
    The bad update is never applied."""
    loss_spike_factor: Annotated[Real, Field(gt=1)] | None = None
    """A mean loss above so many times the running median is bad too. Null: only what is not finite is."""
    loss_spike_window_steps: Annotated[Whole, Field(ge=8, le=10_000)] = 64
    """Steps of which the running median is taken. No loss counts as a spike before so many are there."""
    max_bad_losses: Annotated[Whole, Field(ge=1, le=100_000)] = 10
    """So many bad losses are skipped, or rolled back, in the life of the run; the next one ends it (exit 93)."""


def stop_rule_problems(c: RunConfig) -> Iterator[Problem]:
    """What does not fit together."""
    r = c.recovery
    if r.max_restarts_without_progress < r.same_step_limit:
        key, value = "recovery.max_restarts_without_progress", r.max_restarts_without_progress
        why = f"the run would end before recovery.same_step_limit={r.same_step_limit} can say which failure repeats"
        yield Problem(key, value, why, f"use at least {r.same_step_limit}")
    if r.on_bad_loss == "roll_back" and c.checkpoint.mode == "off":
        why = "checkpoint.mode=off leaves nothing to go back to"
        yield Problem("recovery.on_bad_loss", r.on_bad_loss, why, "use stop or skip_batch, or save checkpoints")
    if r.on_bad_loss == "roll_back" and c.checkpoint.local.interval_steps is not None:
        why = "it goes back to the newest shared step, and a restart prefers a newer one of the local tier"
        fix = "use stop or skip_batch, or checkpoint.local.interval_steps: null"
        yield Problem("recovery.on_bad_loss", r.on_bad_loss, why, fix)
