"""The timeline's bars: what each rank did, in few enough pieces to draw, with nothing shown that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.report.bars import MOST_RANKS, PIXELS, Bar, job_bars, merged, rank_bars
from tests.goodput.builder import Run, ledger_of
from tests.report.runs import broken_run, long_run, reported


def test_a_rank_shows_what_counts_what_was_lost_and_what_led_to_it(run: Run) -> None:
    broken_run(run)
    rows = rank_bars(ledger_of(run))
    assert set(rows) == {0, 1}
    found = sorted((bar.bucket, round(bar.start, 3), round(bar.end, 3)) for bar in rows[1])
    assert found == [
        ("init", 1.0, 2.0),
        ("init", 13.0, 15.0),
        ("lost_work", 7.0, 9.0),
        ("productive", 3.0, 7.0),
        ("productive", 16.0, 24.0),
        ("restore", 15.0, 16.0),
    ]


def test_what_a_stale_rank_does_after_a_newer_attempt_has_begun_is_not_drawn(run: Run) -> None:
    (stale,) = run.ranks(0, count=1)
    stale.span(1, 2, "step", step=1)
    stale.span(2, 9, "checkpoint_wait", step=1)
    (newer,) = run.ranks(5, count=1, cycle=1)
    newer.span(6, 7, "step", step=2)
    (row,) = rank_bars(ledger_of(run)).values()
    assert Bar(2.0, 5.0, "checkpoint_wait") in [bar._replace(start=round(bar.start), end=round(bar.end)) for bar in row]


def test_the_job_s_row_covers_the_whole_run(run: Run) -> None:
    broken_run(run)
    ledger = ledger_of(run)
    assert min(bar.start for bar in job_bars(ledger)) == ledger.start
    assert sum(bar.end - bar.start for bar in job_bars(ledger)) == pytest.approx(ledger.wall_s, rel=0.01)


def test_a_long_run_has_no_more_bars_than_pixels(tmp_path: Path) -> None:
    long_run(tmp_path, 50_000)
    ledger = reported(tmp_path, "long").ledger
    (row,) = rank_bars(ledger).values()
    assert 0 < len(row) + len(job_bars(ledger)) <= 2 * PIXELS
    assert sum(bar.end - bar.start for bar in row) == pytest.approx(ledger.wall_s, rel=0.03)


def test_only_the_first_ranks_get_a_row(run: Run) -> None:
    for log in run.ranks(0, count=MOST_RANKS + 3):
        log.span(1, 2, "step", step=1)
    assert list(rank_bars(ledger_of(run))) == list(range(MOST_RANKS))


@pytest.mark.parametrize(
    ("bars", "left"),
    [
        # Neighbours of one bucket are one bar, whatever lies between them in another.
        ([Bar(0, 4, "a"), Bar(4.5, 8, "a")], [Bar(0, 8, "a")]),
        ([Bar(0, 4, "a"), Bar(4, 4.5, "b"), Bar(4.5, 8, "a")], [Bar(0, 8, "a"), Bar(4, 4.5, "b")]),
        # A gap that one would see stays, and so does one that is longer than what it parts.
        ([Bar(0, 4, "a"), Bar(5.5, 8, "a")], [Bar(0, 4, "a"), Bar(5.5, 8, "a")]),
        ([Bar(0, 0.4, "a"), Bar(0.9, 1.3, "a")], [Bar(0, 0.4, "a"), Bar(0.9, 1.3, "a")]),
        # Also where both are short: a rank that mostly waits does not look busy.
        ([Bar(0, 0.9, "a"), Bar(1.5, 2.4, "a")], [Bar(0, 0.9, "a"), Bar(1.5, 2.4, "a")]),
        # What is far below a pixel is not drawn.
        ([Bar(0, 0.2, "a"), Bar(3, 9, "b")], [Bar(3, 9, "b")]),
    ],
)
def test_bars_are_joined_as_far_as_one_would_not_see_it(bars: list[Bar], left: list[Bar]) -> None:
    assert sorted(merged(bars, 1.0)) == sorted(left)
