"""What a background write costs: the steps beside it are compared with the others."""

from __future__ import annotations

import pytest

from tests.goodput.builder import Log, Run, ledger_of


def _steps(log: Log, lengths: list[float]) -> None:
    """Steps 1.. of these lengths, one after the other, from second 1 on."""
    start = 1.0
    for step, length in enumerate(lengths, start=1):
        log.span(start, start + length, "step", step=step, loss=1.0)
        start += length
    log.point(start, "attempt_end", restart=0, outcome="complete", step=len(lengths))


def test_steps_that_are_slower_during_a_write_cost_what_they_take_longer(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [3.0, *[1.0] * 6, 1.5, 1.25, 1.0, 1.0])
    log.span(10.0, 12.5, "write", step=7)
    ledger = ledger_of(run)
    assert ledger.saves.hidden_s == pytest.approx((0.75,))
    assert ledger.buckets["checkpoint_hidden"] == pytest.approx(0.75)
    assert ledger.buckets["productive"] == pytest.approx(13.0)


def test_steps_that_vary_by_themselves_are_no_cost_of_the_write(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [1.0, 0.9, 1.1, 1.0, 0.9, 1.1, 1.0, 1.3, 0.7, 1.0, 1.0])
    log.span(8.05, 9.9, "write", step=7)
    ledger = ledger_of(run)
    assert ledger.saves.hidden_s == pytest.approx((0.0,))
    assert ledger.buckets["checkpoint_hidden"] == pytest.approx(0.0)


def test_without_undisturbed_steps_nothing_is_claimed(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [1.0] * 4 + [5.0] * 3)
    log.span(1.0, 12.0, "write", step=2)
    ledger = ledger_of(run)
    assert ledger.saves.hidden_s == ()
    assert ledger.buckets["checkpoint_hidden"] == 0


def test_each_write_has_its_own_cost(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [*[1.0] * 7, 2.0, 1.0, 1.0, 1.5, 1.0])
    log.span(8.0, 9.9, "write", step=7)
    log.span(12.0, 13.4, "write", step=10)
    log.span(9.9, 10.0, "publish", step=7)
    saves = ledger_of(run).saves
    assert saves.hidden_s == pytest.approx((1.0, 0.5))
    assert saves.write_s == pytest.approx((1.9, 1.4))
    assert saves.publish_s == pytest.approx((0.1,))


def test_a_write_to_the_local_tier_has_a_cost_of_its_own(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [*[1.0] * 7, 2.0, 1.0, 1.0, 1.5, 1.0])
    log.span(8.0, 9.9, "write", step=7)
    log.span(12.0, 13.4, "write", step=10, tier="local")
    ledger = ledger_of(run)
    assert ledger.saves.hidden_s == pytest.approx((1.0,))
    assert ledger.saves.local_hidden_s == pytest.approx((0.5,))
    assert ledger.buckets["checkpoint_hidden"] == pytest.approx(1.5)


def test_a_write_whose_steps_are_another_ones_is_not_said_to_cost_nothing(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [*[1.0] * 7, 2.0, 1.0, 1.0, 1.0])
    log.span(8.0, 9.9, "write", step=6, tier="local")
    log.span(8.1, 9.9, "write", step=7)
    log.span(10.1, 10.9, "write", step=8)
    saves = ledger_of(run).saves
    assert saves.local_hidden_s == pytest.approx((1.0,))
    assert saves.hidden_s == (0.0,), "of the write after it"


def test_a_save_disturbs_no_step_after_its_commit_although_the_training_loop_sees_the_write_end_later(run: Run) -> None:
    logs = run.ranks(0)
    for log in logs:
        _steps(log, [*[1.0] * 7, 2.0, 1.0, 1.75, 1.0])
        log.span(8.0, 11.5, "write", step=7)
    logs[0].span(8.0, 9.5, "persist", step=7)
    assert ledger_of(run).saves.hidden_s == pytest.approx((1.0,))


def test_the_commit_of_a_shared_save_ends_no_write_of_the_same_step_to_the_local_tier(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    _steps(log, [*[1.0] * 7, 1.0, 1.0, 1.5, 1.0])
    log.span(8.0, 11.0, "write", step=7, tier="local")
    log.span(7.0, 7.5, "persist", step=7)
    assert ledger_of(run).saves.local_hidden_s == pytest.approx((0.5,))
