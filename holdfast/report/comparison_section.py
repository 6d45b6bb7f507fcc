"""Several runs side by side, and the planner's what-if."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.report import MOST_LINES, seconds
from holdfast.report.chart import Chart
from holdfast.report.comparison_chart import band, comparison_chart, what_if_chart
from holdfast.report.palette import RUN_COLOURS, bucket_colour
from holdfast.report.run import ReportedRun
from holdfast.report.run_sections import Section, place
from holdfast.report.series import Steps
from holdfast.report.tables import Html, details, legend, middle, precise, table, text
from holdfast.report.training_chart import loss_comparison_chart
from holdfast.report.what_if import NoWhatIf, WhatIf

Pair = tuple[ReportedRun, Steps]


def comparison_sections(pairs: Sequence[Pair]) -> list[Section]:
    """What a person compares, numbers first."""
    runs = [run for run, _ in pairs]
    shares = comparison_chart(runs, "comparison-chart")
    losses = loss_comparison_chart(list(pairs), "losses-chart")
    colours = [(bucket, bucket_colour(bucket)) for bucket in BUCKETS if any(run.ledger.buckets[bucket] for run in runs)]
    lines = [(f"{i + 1}  {run.name}", RUN_COLOURS[i % len(RUN_COLOURS)]) for i, run in enumerate(runs)]
    return [
        Section("comparison", "Comparison", _numbers(pairs) + place(shares) + legend(colours), shares),
        Section("losses", "Loss of each run", place(losses) + legend(lines) + _losses(pairs), losses),
        Section("differences", "What differs in their configs", _differences(runs)),
    ]


def what_if_section(what_if: WhatIf | NoWhatIf) -> Section:
    """What single changes would buy; computed, and labelled so. Where the planner has no answer: why."""
    heading = "What single changes would buy"
    if isinstance(what_if, NoWhatIf):
        return Section("what-if", heading, Html(f"<p>Not computed. {text(what_if.why)}</p>"))
    chart: Chart = what_if_chart(what_if, "what-if-chart")
    rows = [
        [
            change.name,
            f"{change.goodput:.2%}",
            band(change),
            _saved(change.saved_gpu_hours),
            "-" if change.saved_usd is None else _saved(change.saved_usd),
        ]
        for change in (what_if.as_is, *what_if.changes)
    ]
    columns = [
        "change",
        "<expected goodput",
        "<nine of ten runs",
        f"<{what_if.unit} hours saved per month",
        "<USD saved per month",
    ]
    numbers = table("What single changes would buy, computed", columns, rows)
    basis = Html(f'<p class="note">Computed. {text(what_if.basis)}</p>')
    return Section("what-if", heading, place(chart) + basis + numbers, chart)


def _saved(amount: float) -> str:
    return f"{round(amount):+,}" if round(amount) else "0"


def _numbers(pairs: Sequence[Pair]) -> Html:
    measures: list[tuple[str, Callable[[ReportedRun, Steps], str]]] = [
        ("goodput, start-up included", lambda run, _: f"{run.ledger.goodput_total:.1%}"),
        ("goodput from the first finished step", lambda run, _: f"{run.ledger.goodput:.1%}"),
        ("wall time (s)", lambda run, _: seconds(run.ledger.wall_s)),
        ("ranks", lambda run, _: f"{run.ledger.ranks:,}"),
        ("steps in the final state", lambda run, _: f"{run.ledger.steps:,}"),
        ("steps rolled back", lambda _, steps: f"{int((~steps.kept).sum()):,}"),
        ("seconds per step (median)", lambda _, steps: f"{np.median(steps.seconds):.3f}" if len(steps.step) else "-"),
        ("last loss", lambda _, steps: _last_loss(steps)),
        ("faults", lambda run, _: f"{len(run.ledger.recoveries):,}"),
        ("training again (s, median)", lambda run, _: seconds(middle(_recovered(run)))),
        ("training again (s, longest)", lambda run, _: seconds(max(_recovered(run), default=None))),
        ("checkpoints committed", lambda run, _: f"{len(run.ledger.saves.committed):,}"),
        ("a save holds a step up (s, median)", lambda run, _: precise(middle(run.ledger.saves.blocked_s))),
        ("from copy to commit (s, median)", lambda run, _: precise(middle(run.ledger.saves.persist_s))),
    ]
    columns = ["", *(f"<{index + 1}  {run.name}" for index, (run, _) in enumerate(pairs))]
    rows = [[name, *(measure(run, steps) for run, steps in pairs)] for name, measure in measures]
    every = [[bucket, *(seconds(run.ledger.buckets[bucket]) for run, _ in pairs)] for bucket in BUCKETS]
    buckets = details("Seconds of each bucket as a table", table("Seconds of each bucket", columns, every))
    return table("The runs in numbers", columns, rows) + buckets


def _losses(pairs: Sequence[Pair]) -> Html:
    rows = []
    for index, (run, steps) in enumerate(pairs, 1):
        finite = np.flatnonzero(steps.kept & np.isfinite(steps.loss))
        order = finite[np.argsort(steps.step[finite], kind="stable")]
        loss = steps.loss[order]
        values = [f"{value:.4g}" for value in (loss[0], loss.min(), loss[-1])] if len(loss) else ["-"] * 3
        rows.append([f"{index}  {run.name}", *values])
    return table("Loss of each run", ["run", "<first", "<lowest", "<last"], rows)


def _differences(runs: Sequence[ReportedRun]) -> Html:
    configs = [run.config() for run in runs]
    if not all(configs):
        return Html("<p>Not every run has a run.yaml, so their configs cannot be compared.</p>")
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [[key, *(config.get(key, "-") for config in configs)] for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    if not different:
        return Html("<p>Nothing: their configs are the same.</p>")
    columns = ["key", *(f"{index + 1}  {run.name}" for index, run in enumerate(runs))]
    left_out = len(different) - MOST_LINES
    more = Html(f"<p>... and {left_out} more.</p>" if left_out > 0 else "")
    return table("Keys of the configs that differ", columns, different[:MOST_LINES]) + more


def _recovered(run: ReportedRun) -> list[float]:
    return [r.recovered_s for r in run.ledger.recoveries if r.recovered_s is not None]


def _last_loss(steps: Steps) -> str:
    finite = np.flatnonzero(steps.kept & np.isfinite(steps.loss))
    return f"{steps.loss[finite[steps.step[finite].argmax()]]:.4g}" if len(finite) else "-"
