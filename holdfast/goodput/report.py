"""A ledger as text: tables by rich, without colour where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.goodput.attempts import IN_JOB
from holdfast.goodput.failures import PARTS, Recovery
from holdfast.goodput.ledger import BUCKETS, Ledger
from holdfast.goodput.measures import MEANINGS
from holdfast.goodput.saves import STAGES, TOO_FEW, Saves

PLAIN_WIDTH = 120
"""Width of the report in a file or a pipe."""
MOST_LINES = 30
"""Longer lists are cut, with the number of lines left out."""


def console_for_report() -> Console:
    """A console on stdout that keeps tables whole when it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def print_report(ledger: Ledger, name: str, console: Console) -> None:
    """Everything that a person wants to know about where the time went."""
    print_headline(ledger, name, console)
    print_measures(ledger, console)
    print_buckets(ledger, console)
    print_recoveries(ledger.recoveries, console)
    print_saves(ledger.saves, console)
    if ledger.anomalies:
        console.print("[bold]Doubts about the logs[/bold]")
        _print_lines((str(anomaly) for anomaly in ledger.anomalies), console)


def print_headline(ledger: Ledger, name: str, console: Console) -> None:
    """One line: goodput and what it was made of."""
    size = f"{_count(ledger.ranks, 'rank')}, {_count(ledger.steps, 'step')}, {_count(len(ledger.attempts), 'attempt')}"
    productive = f"{seconds(ledger.buckets['productive'])} s productive of {seconds(ledger.runtime_s)} s"
    console.print(f"[bold]{escape(name)}[/bold]: goodput {ledger.goodput_total:.1%} ({productive}); {size}\n")


def print_measures(ledger: Ledger, console: Console) -> None:
    """The run as others measure theirs, each figure with what it is."""
    table = _table("As others measure it", "measure", "<value", "meaning")
    table.add_row("total job time", f"{seconds(ledger.wall_s)} s", "wall time, queue included")
    for name, value in ledger.measures.summary().items():
        table.add_row(name, "not applicable" if value is None else f"{value:.1%}", MEANINGS[name])
    console.print(table)


def print_buckets(ledger: Ledger, console: Console) -> None:
    """The wall time, bucket by bucket; zeros in one line."""
    table = _table("Where the time went", "bucket", "<seconds", "<share", "meaning")
    for bucket, value in sorted(ledger.buckets.items(), key=lambda item: -item[1]):
        if value > 0:
            table.add_row(bucket, seconds(value), f"{value / ledger.wall_s:.1%}", BUCKETS[bucket])
    table.add_section()
    table.add_row("wall time", seconds(ledger.wall_s), "", "first event to last; every second is in one bucket")
    console.print(table)
    zero = [bucket for bucket, value in ledger.buckets.items() if value <= 0]
    console.print(f"[dim]zero: {', '.join(zero)}[/dim]\n")


def print_recoveries(recoveries: tuple[Recovery, ...], console: Console) -> None:
    """What went wrong, how it was overcome, and the parts of each restart."""
    if not recoveries:
        console.print("[bold]Failures[/bold]\n  none\n")
        return
    table = _table(
        "Failures, in seconds from the fault", "failure", "layer", "<detected", "<training again", "<steps lost"
    )
    parts = _table("Parts of each restart, in seconds", "failure", *(f"<{heading(part)}" for part in PARTS), "<total")
    for recovery in recoveries[:MOST_LINES]:
        name, layer = title(recovery), recovery.layer or "not recovered"
        table.add_row(
            name, layer, seconds(recovery.detected_s), seconds(recovery.recovered_s), str(recovery.lost_steps)
        )
        if recovery.recovered_s is not None and recovery.layer:
            parts.add_row(name, *(seconds(recovery.breakdown[part]) for part in PARTS), seconds(recovery.recovered_s))
    console.print(table)
    if len(recoveries) > MOST_LINES:
        console.print(f"  ... and {len(recoveries) - MOST_LINES} more")
    if parts.row_count:
        console.print(parts)


def print_saves(saves: Saves, console: Console) -> None:
    """What became of the checkpoints."""
    last = f", the last at step {saves.committed[-1]}" if saves.committed else ""
    console.print(f"[bold]Checkpoints[/bold]\n  {len(saves.committed)} committed{last}; {len(saves.failed)} failed")
    for what, name in STAGES:
        spread = getattr(saves, name)
        if spread:
            console.print(f"  {what}: {seconds(median(spread))} s per save (median), {seconds(max(spread))} s at most")
        elif saves.unknown(name):
            console.print(f"  {what}: not known, since {TOO_FEW}")
    failed = [f"failed at step {step}: {error}" for step, error in saves.failed]
    _print_lines([*failed, *(f"skipped {folder}: {why}" for folder, why in saves.skipped)], console)
    console.print()


def breakdown_markdown(recoveries: Iterable[Recovery]) -> str | None:
    """Markdown table of the parts of all in-job restarts; None if there was none."""
    rows = [r for r in recoveries if r.layer == IN_JOB and r.recovered_s is not None]
    if not rows:
        return None
    lines = [
        "| fault | " + " | ".join(heading(part) for part in PARTS) + " | total |",
        "|---|" + "---:|" * (len(PARTS) + 1),
    ]
    for recovery in rows:
        cells = [seconds(recovery.breakdown[part]) for part in PARTS] + [seconds(recovery.recovered_s)]
        lines.append(f"| {title(recovery)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def title(recovery: Recovery) -> str:
    """`exception, rank 1, step 25`."""
    fault = recovery.fault
    rank = "" if fault.rank is None else f", rank {fault.rank}"
    step = "" if fault.step is None else f", step {fault.step}"
    return f"{fault.kind}{rank}{step}"


def heading(part: str) -> str:
    """Column heading of a part of a restart."""
    return part.replace("_", " ")


def seconds(value: float | None) -> str:
    """Seconds for people; a dash for what is not known or did not happen."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _table(caption: str, *columns: str) -> Table:
    """Columns that start with `<` hold numbers."""
    table = Table(title=caption, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="right" if number else "left", no_wrap=number)
    return table


def _print_lines(lines: Iterable[str], console: Console) -> None:
    every = list(lines)
    for line in every[:MOST_LINES]:
        console.print(f"  {escape(line)}", soft_wrap=True)
    if len(every) > MOST_LINES:
        console.print(f"  ... and {len(every) - MOST_LINES} more")
