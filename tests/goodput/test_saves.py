"""What became of each save, and how long it took: a save is a step of an attempt, and belongs to one tier."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.goodput.report import print_saves
from tests.goodput.builder import Log, Run, begin, end, ledger_of, train


def restarted_in_process(run: Run) -> list[Log]:
    """Steps 1 to 6 from 1 on, then again from step 3 on at 10, in the same processes."""
    logs = run.ranks(0)
    begin(logs, 0.5)
    train(logs, 1, 1, 6)
    end(logs, 7, "exception", error="InjectedFault", step=7)
    begin(logs, 8, restart=1)
    train(logs, 10, 3, 8)
    end(logs, 16, "complete", restart=1)
    return logs


def test_a_step_that_two_attempts_of_a_process_saved_is_two_saves(run: Run) -> None:
    for log in restarted_in_process(run):
        for at in (5.0, 12.0):
            log.span(at, at + 0.25, "stage", step=4)
            log.span(at, at + 0.5, "write", step=4)
            log.span(at, at + 0.75, "persist", step=4)
            log.span(at + 0.5, at + 0.75, "publish", step=4)
    saves = ledger_of(run).saves
    assert saves.blocked_s == pytest.approx((0.25, 0.25))
    assert saves.write_s == pytest.approx((0.5, 0.5))
    assert saves.persist_s == pytest.approx((0.75, 0.75))
    assert saves.publish_s == pytest.approx((0.25, 0.25))


def test_a_step_whose_save_failed_in_two_attempts_of_a_process_is_two_failed_saves(run: Run) -> None:
    for log in restarted_in_process(run):
        log.point(6, "save_failed", step=4, error="no space left on device")
        log.point(13, "save_failed", step=4, error="read-only file system")
    assert ledger_of(run).saves.failed == ((4, "no space left on device"), (4, "read-only file system"))


def test_a_write_took_what_the_writer_says_and_not_until_the_training_loop_looked(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 1, 1, 6)
    logs[0].span(2, 4, "write", step=1, seconds=0.5)
    logs[1].span(2, 3, "write", step=1, seconds=1)
    logs[0].span(4, 5, "write", step=3)  # an older log
    assert ledger_of(run).saves.write_s == pytest.approx((1.0, 1.0))


def test_saves_of_the_local_tier_stand_apart(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    train([log], 1, 1, 6)
    log.span(2, 2.25, "stage", step=1)
    log.span(3, 3.5, "stage", step=2, tier="local")
    log.span(2, 2.75, "write", step=1, seconds=0.5)
    log.span(3, 4.0, "write", step=2, tier="local")
    saves = ledger_of(run).saves
    assert (saves.blocked_s, saves.write_s, saves.local_write_s) == ((0.25,), (0.5,), (1.0,))


def _said(run: Run) -> str:
    text = io.StringIO()
    print_saves(ledger_of(run).saves, Console(file=text, width=120))
    return text.getvalue()


def test_the_median_of_an_even_number_of_saves_lies_between_the_two_in_the_middle(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    train([log], 0, 1, 20)
    for step, seconds in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 9.0)):
        log.span(step, step + seconds, "persist", step=step)
    assert "from copy to commit: 3.00 s per save (median), 9.00 s at most" in _said(run)


@pytest.mark.parametrize(("tier", "where"), [({}, "the write"), ({"tier": "local"}, "a write to the local tier")])
def test_where_no_step_shows_how_long_one_takes_undisturbed_a_report_says_that_the_cost_is_not_known(
    run: Run, tier: dict[str, str], where: str
) -> None:
    (log,) = run.ranks(0, count=1)
    train([log], 0, 1, 8)
    log.span(0.5, 7.5, "write", step=1, **tier)
    said = _said(run)
    assert f"slower steps during {where}: not known, since no attempt had 5 steps" in said
    assert said.count("not known") == 1
