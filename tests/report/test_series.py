"""Loss and step time: what is drawn of many steps, and what counts of steps that were executed twice."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.report.series import MOST_POINTS, envelope, find_steps
from tests.goodput.builder import Run, ledger_of
from tests.report.runs import broken_run


def test_a_step_that_was_rolled_back_and_executed_again_stands_twice_and_counts_once(run: Run) -> None:
    broken_run(run)
    steps = find_steps(ledger_of(run))
    assert steps.step.tolist() == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10, 11, 12]
    assert steps.step[~steps.kept].tolist() == [5, 6]
    assert steps.attempt[~steps.kept].tolist() == [0, 0]
    assert steps.first_steps() == [("g1-c0-r0", 1), ("g1-c1-r0", 5)]
    assert steps.seconds == pytest.approx(1.0)


def test_the_loss_of_a_step_is_the_mean_of_its_ranks(run: Run) -> None:
    broken_run(run)
    steps = find_steps(ledger_of(run))
    assert steps.loss[:3] == pytest.approx([4.0, 3.9, 3.8])


def test_a_step_without_a_finite_loss_has_none(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    log.span(1, 2, "step", step=1)
    log.span(2, 3, "step", step=2, loss=float("nan"))
    log.span(3, 4, "step", step=3, loss="high")
    log.span(4, 5, "step", step=4, loss=2.5)
    assert np.isfinite(find_steps(ledger_of(run)).loss).tolist() == [False, False, False, True]


def test_few_points_are_drawn_as_they_are() -> None:
    x, y = envelope(np.arange(5), np.array([1.0, 2.0, np.nan, 4.0, np.inf]))
    assert (x.tolist(), y.tolist()) == ([0, 1, 3], [1.0, 2.0, 4.0])


def test_of_very_many_points_every_spike_survives_in_its_place() -> None:
    y = np.sin(np.arange(100_000) / 500)
    y[31_415], y[77_777] = 9.0, -9.0
    x, drawn = envelope(np.arange(len(y)), y)
    assert len(x) <= MOST_POINTS
    assert x[drawn.argmax()] == 31_415 and x[drawn.argmin()] == 77_777
    assert (np.diff(x) > 0).all()
    # Between two drawn points the line leaves out nothing that one would see.
    assert np.abs(np.interp(np.arange(len(y)), x, drawn) - np.where(np.abs(y) > 2, np.nan, y))[:30_000].max() < 0.2
