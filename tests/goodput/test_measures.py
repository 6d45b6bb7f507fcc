"""Figures that others use, against values worked out by hand; what a smaller job and a silent one are said to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.config import load_profile
from holdfast.goodput.job import Job, job_of
from holdfast.goodput.ledger import BUCKETS, Ledger, account
from holdfast.goodput.measures import MEANINGS
from holdfast.goodput.reader import read_run
from holdfast.goodput.taxonomy import GOOGLE_NAMES
from tests.goodput.builder import Run, begin, end, expect, ledger_of, train


def with_job(run: Run, **job: Any) -> Ledger:
    """The ledger of a run that was configured like this."""
    fields: dict[str, Any] = {"ranks": 2, "flops_per_step": 0.0, "peak_flops_per_s": None, **job}
    return account(replace(read_run(run.path), job=Job(**fields)))


def faulted(run: Run) -> None:
    """20 s: queue 1, init 2, steps 1..6 until 9, 5 and 6 of them lost; fault at 9, seen at 9.5, back at 16, to 20."""
    run.process(0, "runner").point(0, "run_start")
    supervisor = run.process(1, "supervisor", pod="worker-0", role="worker")
    supervisor.point(1, "pod_start")
    logs = run.ranks(1)
    begin(logs, 2)
    train(logs, 3, 1, 6)
    logs[1].point(9, "fault", id="rank_sigkill-rank1", kind="rank_sigkill", rank=1, step=7)
    supervisor.point(9.5, "launcher_event", event="failure_detected", cycle=1)
    new = run.ranks(12, cycle=1)
    begin(new, 13)
    for log in new:
        log.span(15, 16, "restore", step=4)
    train(new, 16, 5, 8)
    end(new, 20, "complete")


def test_the_figures_of_a_faulted_run(run: Run) -> None:
    faulted(run)
    ledger = ledger_of(run)
    expect(ledger, queue=1, init=2, productive=8, lost_work=2, detection=0.5, restart_in_job=5.5, restore=1)
    assert ledger.runtime_s == pytest.approx(19)
    assert ledger.measures.summary() == pytest.approx(
        {
            "goodput": 7 / 16,  # after second 4
            "goodput_total": 8 / 19,
            "ettr": 8 / 20,
            "mfu": None,
            "mfu_total": None,
            "article_training_goodput": 8 * 1.0 / 19,  # 8 steps of 1 s on average
            "article_infra_goodput": (19 - 7) / 19,
        }
    )


def test_the_articles_training_goodput_leaves_out_what_makes_steps_longer(run: Run) -> None:
    (log,) = run.ranks(0, count=1)
    train([log], 0, 1, 4, seconds=2.0)
    for step in range(1, 5):
        log.span(2 * step - 2, 2 * step - 1, "data", step=step)
    ledger = ledger_of(run)
    assert ledger.goodput_total == pytest.approx(0.5)
    assert ledger.measures.article_training_goodput == pytest.approx(1.0)


def test_every_bucket_and_every_figure_has_a_meaning_and_every_bucket_a_name_elsewhere() -> None:
    assert set(MEANINGS) == set(account(read_nothing()).measures.summary())
    assert list(GOOGLE_NAMES) == list(BUCKETS)


def read_nothing() -> Any:
    """An empty timeline."""
    from holdfast.goodput.timeline import Timeline

    return Timeline()


def test_an_empty_run_has_figures_of_zero() -> None:
    ledger = account(read_nothing())
    assert set(ledger.measures.summary().values()) == {0.0, None}
    assert ledger.anomalies == ()


def test_mfu_is_operations_per_second_of_productive_time_over_the_peak_of_all_gpus(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 5, 1, 10)
    measures = with_job(run, flops_per_step=3e12, peak_flops_per_s=4e12).measures
    assert measures.mfu == pytest.approx(10 * 3e12 / (10 * 2 * 4e12))
    assert measures.mfu_total == pytest.approx(10 * 3e12 / (15 * 2 * 4e12))


def test_mfu_of_a_half_sized_job_is_that_of_its_own_gpus(run: Run) -> None:
    train(run.ranks(0), 0, 1, 10, seconds=2.0)
    full_size = with_job(run, ranks=4, flops_per_step=8e12, peak_flops_per_s=4e12)
    assert full_size.measures.mfu == pytest.approx(10 * 8e12 / (20 * 2 * 4e12))


def test_a_cpu_has_no_mfu_and_a_p5_has() -> None:
    assert job_of(load_profile("cpu-demo")).peak_flops_per_s is None
    job = job_of(load_profile("llama3-8b-p5x2"))
    assert job.peak_flops_per_s == pytest.approx(989.4e12)
    assert job.flops_per_step > 1e15


# --- degraded ---


def test_with_half_the_ranks_half_of_each_step_is_degraded(run: Run) -> None:
    full = run.ranks(0, count=4)
    begin(full, 0)
    train(full, 1, 1, 4)  # to 5
    half = run.ranks(5, count=2, generation=2)
    begin(half, 5)
    train(half, 6, 5, 8, seconds=2.0)  # to 14
    again = run.ranks(14, count=4, generation=3)
    begin(again, 14)
    train(again, 15, 9, 10)
    end(again, 17, "complete")
    ledger = ledger_of(run)
    expect(ledger, init=1, productive=4 + 4 + 2, degraded=4, node_replacement=2)
    assert [attempt.world_size for attempt in ledger.attempts] == [4, 2, 4]
    assert ledger.ranks == 4
    assert [a["ranks"] for a in ledger.summary()["attempts"]] == [4, 2, 4]
    within = [time for s in ledger.segments if s.bucket == "degraded" for time in (s.start, s.end)]
    assert within == pytest.approx([7, 8, 9, 10, 11, 12, 13, 14])


def test_a_job_that_never_had_its_full_size_is_degraded_from_the_first_step_on(run: Run) -> None:
    train(run.ranks(0, count=3), 0, 1, 8)
    ledger = with_job(run, ranks=4)
    assert (ledger.ranks, ledger.buckets["productive"], ledger.buckets["degraded"]) == pytest.approx((4, 6, 2))


def test_only_productive_time_is_degraded(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 0, 1, 4)
    logs[0].span(1, 1.5, "data", step=2)
    ledger = with_job(run, ranks=4)
    assert ledger.buckets["data_stall"] == pytest.approx(0.5)
    assert ledger.buckets["degraded"] == pytest.approx(1.75)


def test_an_attempt_larger_than_configured_is_not_degraded_and_no_gain(run: Run) -> None:
    train(run.ranks(0, count=4), 0, 1, 4)
    ledger = with_job(run, ranks=2)
    assert (ledger.buckets["productive"], ledger.buckets["degraded"]) == pytest.approx((4, 0))


def test_a_rank_without_a_log_does_not_make_the_job_smaller(run: Run) -> None:
    train([run.rank(0, 0, world=2)], 0, 1, 4)
    assert ledger_of(run).buckets["degraded"] == 0


# --- unattributed ---


def test_more_than_one_percent_unattributed_is_explained(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 0, 1, 4)
    train(logs, 7, 5, 8)  # 3 s for which nobody says anything
    logs[0].point(13, "breath")  # 2 s after the last step
    (doubt,) = ledger_of(run).anomalies
    assert (doubt.kind, doubt.text[:29]) == ("unattributed", "38.5% of the time is unattrib")
    assert "3.0 s between steps" in doubt.text
    assert "2.0 s after the last finished step" in doubt.text


def test_less_than_one_percent_unattributed_is_not_worth_a_word(run: Run) -> None:
    logs = run.ranks(0)
    train(logs, 0, 1, 100)
    train(logs, 100.5, 101, 200)
    end(logs, 200.5, "complete")
    ledger = ledger_of(run)
    assert ledger.buckets["unattributed"] == pytest.approx(0.5)
    assert ledger.anomalies == ()
