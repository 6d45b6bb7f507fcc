"""The sections of one run: charts, each with its numbers as a table, and what has no chart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from holdfast.goodput.failures import PARTS
from holdfast.goodput.ledger import BUCKETS, Ledger
from holdfast.goodput.measures import MEANINGS
from holdfast.goodput.report import MOST_LINES, heading, seconds, title
from holdfast.goodput.saves import STAGES
from holdfast.report.chart import Chart, spoken
from holdfast.report.palette import KEPT, ROLLED_BACK, bucket_colour, part_colour
from holdfast.report.recovery_chart import recovery_chart
from holdfast.report.run import ReportedRun
from holdfast.report.series import Steps
from holdfast.report.step_table import attempts_table
from holdfast.report.tables import Html, bullets, details, legend, middle, precise, swatch, table, text
from holdfast.report.timeline_chart import buckets_drawn, timeline_chart
from holdfast.report.training_chart import training_chart
from holdfast.report.waterfall_chart import waterfall_chart


class Section(NamedTuple):
    """A part of the page: its anchor, its heading, its HTML, and the chart that the HTML has a place for."""

    anchor: str
    title: str
    body: Html
    chart: Chart | None = None


def run_sections(run: ReportedRun, steps: Steps, prefix: str) -> Iterator[Section]:
    """All sections of a run; prefix makes their anchors unique on the page."""
    yield _timeline(run, steps, f"{prefix}timeline")
    yield _waterfall(run.ledger, f"{prefix}time")
    yield _training(run, steps, f"{prefix}training")
    yield _recoveries(run.ledger, f"{prefix}faults")
    yield _checkpoints(run, f"{prefix}checkpoints")
    yield _configuration(run, f"{prefix}configuration")
    if run.ledger.anomalies:
        doubts = bullets(map(str, run.ledger.anomalies))
        yield Section(f"{prefix}doubts", "Doubts about the logs", doubts)


def place(chart: Chart) -> Html:
    """Where page.js draws a chart: an image with its words for those who do not see it."""
    return Html(
        f'<figure><div class="chart" id="{chart.key}" role="img" aria-label="{text(f"{chart.title}. {chart.says}")}" '
        f'style="height:{chart.height}px"></div><figcaption>{text(chart.says)}</figcaption></figure>'
    )


def tiles(run: ReportedRun, steps: Steps) -> Html:
    """The numbers that one asks for first."""
    ledger = run.ledger
    recovered = [r.recovered_s for r in ledger.recoveries if r.recovered_s is not None]
    entries = [
        ("goodput, start-up included", f"{ledger.goodput_total:.1%}"),
        ("wall time", spoken(ledger.wall_s)),
        ("steps in the final state", f"{ledger.steps:,}"),
        ("steps rolled back", f"{int((~steps.kept).sum()):,}"),
        ("per step (median)", spoken(float(np.median(steps.seconds))) if len(steps.step) else "-"),
        ("faults overcome", f"{len(recovered)} of {len(ledger.recoveries)}"),
        ("longest recovery", spoken(max(recovered)) if recovered else "none"),
        ("checkpoints committed", f"{len(ledger.saves.committed):,}"),
    ]
    inside = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in entries)
    return Html(f'<dl class="tiles">{inside}</dl>')


def _timeline(run: ReportedRun, steps: Steps, anchor: str) -> Section:
    chart = timeline_chart(run, f"{anchor}-chart")
    colours = [(bucket, bucket_colour(bucket)) for bucket in buckets_drawn(run)]
    note = Html(
        '<p class="note">A triangle is a fault, a diamond a commit. An attempt is named by generation, '
        "cycle and restart."
        '<span class="zoom"> Drag over a chart to look closer, double-click to come back.</span></p>'
    )
    body = place(chart) + legend(colours) + note + details("Attempts as a table", attempts_table(run.ledger, steps))
    return Section(anchor, "What the job did", body, chart)


def _waterfall(ledger: Ledger, anchor: str) -> Section:
    chart = waterfall_chart(ledger, f"{anchor}-chart")
    rows = []
    for bucket, meaning in BUCKETS.items():
        value = ledger.buckets[bucket]
        share = value / ledger.wall_s if ledger.wall_s else 0.0
        rows.append([swatch(bucket_colour(bucket)) + text(bucket), seconds(value), f"{share:.1%}", meaning])
    rows.append(["wall time", seconds(ledger.wall_s), "", "every second is in exactly one bucket"])
    buckets = table("Seconds and share of each bucket", ["bucket", "<seconds", "<share", "meaning"], rows)
    body = place(chart) + details("Every bucket as a table", buckets)
    return Section(anchor, "Where the time went", body + details("As others measure it", _measures(ledger)), chart)


def _measures(ledger: Ledger) -> Html:
    rows = [
        [name, "not applicable" if value is None else f"{value:.1%}", MEANINGS[name]]
        for name, value in ledger.measures.summary().items()
    ]
    return table("The run as others measure theirs", ["measure", "<value", "meaning"], rows)


def _training(run: ReportedRun, steps: Steps, anchor: str) -> Section:
    chart = training_chart(run, steps, f"{anchor}-chart")
    lost = [] if steps.kept.all() else [("rolled back", ROLLED_BACK)]
    colours = legend([("part of the final state", KEPT), *lost])
    note = Html('<p class="note">A dotted line with a triangle is a restart, at the step with which it went on.</p>')
    numbers = details("Loss and step time of each attempt as a table", attempts_table(run.ledger, steps))
    return Section(anchor, "Loss and step time", place(chart) + colours + note + numbers, chart)


def _recoveries(ledger: Ledger, anchor: str) -> Section:
    if not ledger.recoveries:
        return Section(anchor, "Faults and recoveries", Html("<p>No fault.</p>"))
    columns = ["fault", "layer", "<detected", "<training again", "<steps lost", *(f"<{heading(p)}" for p in PARTS)]
    rows = [
        [
            title(recovery),
            recovery.layer or "not recovered",
            seconds(recovery.detected_s),
            seconds(recovery.recovered_s),
            str(recovery.lost_steps),
            *(seconds(recovery.breakdown[part]) for part in PARTS),
        ]
        for recovery in ledger.recoveries[:MOST_LINES]
    ]
    left_out = len(ledger.recoveries) - len(rows)
    more = Html(f"<p>... and {left_out} more.</p>" if left_out else "")
    numbers = details("Every recovery as a table, in seconds", table("Seconds from each fault", columns, rows) + more)
    chart = recovery_chart(ledger.recoveries, f"{anchor}-chart")
    if chart is None:
        none = Html(f"<p>None of {len(ledger.recoveries)} faults was overcome.</p>")
        return Section(anchor, "Faults and recoveries", none + numbers)
    colours = legend([(heading(part), part_colour(part)) for part in PARTS])
    return Section(anchor, "Faults and recoveries", place(chart) + colours + numbers, chart)


def _checkpoints(run: ReportedRun, anchor: str) -> Section:
    saves, ledger = run.ledger.saves, run.ledger
    rows = []
    for what, name in STAGES:
        spread = getattr(saves, name)
        if spread:
            numbers = (middle(spread), max(spread), sum(spread))
            rows.append([what, f"{len(spread):,}", *map(precise, numbers)])
        elif saves.unknown(name):
            rows.append([what, "0", *["not known"] * 3])
    columns = ["per save", "<saves", "<median (s)", "<longest (s)", "<in all (s)"]
    stages = table("Stages of a save, in seconds", columns, rows) if rows else Html("<p>No save was logged.</p>")
    last = f", the last at step {saves.committed[-1]:,}" if saves.committed else ""
    sizes = [size for event in run.timeline.named("persist") if (size := event.whole("bytes"))]
    times = sorted({event.whole("step"): event.start for event in run.timeline.named("commit")}.values())
    gaps = [after - before for before, after in pairwise(times)]
    facts = [f"{len(saves.committed):,} committed{last}; {len(saves.failed):,} failed; {len(saves.skipped):,} unfit"]
    if sizes:
        facts.append(f"{max(sizes):,} bytes per checkpoint")
    if gaps:
        facts.append(f"a commit every {seconds(middle(gaps))} s (median), {seconds(max(gaps))} s at most")
    facts += [f"failed at step {step}: {error}" for step, error in saves.failed]
    facts += [f"not restored from {folder}: {why}" for folder, why in saves.skipped]
    share = (
        ledger.buckets["checkpoint_blocked"] + ledger.buckets["checkpoint_hidden"] + ledger.buckets["checkpoint_wait"]
    )
    if ledger.wall_s:
        facts.insert(1, f"checkpoints cost {precise(share)} s, {share / ledger.wall_s:.2%} of the wall time")
    return Section(anchor, "Checkpoints", bullets(facts) + stages)


SHOWN = (
    "name",
    "cluster.instance_type",
    "cluster.nodes",
    "cluster.ranks_per_node",
    "recovery.spares",
    "recovery.in_process",
    "recovery.in_job",
    "model.family",
    "model.dtype",
    "training.steps",
    "training.global_batch_size",
    "checkpoint.mode",
    "checkpoint.interval_steps",
    "seed",
)
"""Keys of the config that one asks for first; the whole file is below them."""


def _configuration(run: ReportedRun, anchor: str) -> Section:
    config = run.config()
    rows = [[key, config[key]] for key in SHOWN if key in config]
    keys = table("Main keys of the config", ["key", "value"], rows) if rows else Html("<p>No run.yaml was found.</p>")
    versions = [[library, version] for library, version in run.versions().items()]
    libraries = (
        table("Versions that the ranks logged", ["library", "version"], versions, caption_seen=True)
        if versions
        else Html('<p class="note">The ranks of this run logged no versions.</p>')
    )
    whole = (
        details("The whole config (run.yaml)", Html(f'<pre tabindex="0">{text(run.config_text)}</pre>'))
        if run.config_text
        else Html("")
    )
    return Section(anchor, "Configuration and versions", Html(f'<div class="pair">{keys}{libraries}</div>{whole}'))
