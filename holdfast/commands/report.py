"""`holdfast report`: where a run's time went, as text, JSON or one HTML file, which can put several runs side
by side. Reads the event logs; changes nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import ConfigError, Problem
from holdfast.goodput.locate import locate_run

if TYPE_CHECKING:  # the ledger imports numpy, which no other command of `holdfast` should wait for
    from holdfast.goodput.ledger import Ledger
    from holdfast.goodput.timeline import Timeline


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "report",
        help="show where a run's time went",
        description="Accounts every second of a run: goodput, failures and recoveries, checkpoints, doubts.",
    )
    parser.add_argument(
        "directories",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="the --out folder of a run, or a run directory; several are put side by side on the HTML page",
    )
    parser.add_argument(
        "-o",
        "--output",
        "--html",
        dest="html",
        metavar="FILE",
        type=Path,
        help="also write one self-contained HTML page",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of tables")
    form.add_argument(
        "--breakdown-markdown",
        action="store_true",
        help="print only the parts of the in-job restarts, as a Markdown table",
    )


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    from holdfast.report.run import distinct_names

    run_dirs = [locate_run(directory) for directory in args.directories]
    _refuse_mixed_forms(args)
    accounts = [_account(run_dir, asked) for run_dir, asked in zip(run_dirs, args.directories, strict=True)]
    ledgers = [ledger for _, ledger in accounts]
    names = distinct_names(run_dirs, args.directories)
    if args.html:
        _write_page(names, run_dirs, accounts, args.html)
    if args.json:
        print(json.dumps(ledgers[0].summary(), indent=2))
    elif args.breakdown_markdown:
        print(_breakdown(ledgers[0], args.directories[0]))
    else:
        from holdfast.goodput.report import console_for_report, print_report

        console = console_for_report()
        for name, ledger in zip(names, ledgers, strict=True):
            print_report(ledger, name, console)
        if args.html:
            console.print(f"Report: {args.html.resolve()}", soft_wrap=True, markup=False)
    return 0


def _refuse_mixed_forms(args: argparse.Namespace) -> None:
    """JSON and Markdown are read by programs, which expect one run."""
    if len(args.directories) > 1 and (args.json or args.breakdown_markdown):
        given = " ".join(map(str, args.directories))
        fix = "name one run, or leave --json and --breakdown-markdown out"
        raise ConfigError([Problem("DIR", given, "this form is of one run", fix)], "no report")


def _account(run_dir: Path, asked: Path) -> tuple[Timeline, Ledger]:
    from holdfast.goodput.ledger import account
    from holdfast.goodput.reader import read_run

    timeline = read_run(run_dir)
    _refuse_other_versions(timeline, asked)
    ledger = account(timeline)
    if not ledger.segments:
        fix = "wait until the run has started, or name another run"
        raise ConfigError([Problem("DIR", str(asked), "no event has been logged in it", fix)], "no report")
    return timeline, ledger


def _refuse_other_versions(timeline: Timeline, asked: Path) -> None:
    """What a log of another version means is not known: its numbers would be guesses."""
    from holdfast.goodput.lines import OTHER_VERSION

    foreign = next((a for a in timeline.anomalies if a.kind in OTHER_VERSION), None)
    if foreign is not None:
        why = f"an event log in it cannot be trusted: {foreign}"
        fix = "use the version of holdfast that wrote it"
        raise ConfigError([Problem("DIR", str(asked), why, fix)], "no report")


def _write_page(
    names: Sequence[str], run_dirs: Sequence[Path], accounts: Sequence[tuple[Timeline, Ledger]], path: Path
) -> None:
    from holdfast.report.page import html_page, write_page
    from holdfast.report.planned import what_if_of
    from holdfast.report.run import reported_run

    runs = [
        reported_run(name, run_dir, timeline, ledger)
        for name, run_dir, (timeline, ledger) in zip(names, run_dirs, accounts, strict=True)
    ]
    write_page(path, html_page(runs, what_if=what_if_of(runs)))


def _breakdown(ledger: Ledger, directory: Path) -> str:
    from holdfast.goodput.report import breakdown_markdown

    table = breakdown_markdown(ledger.recoveries)
    if table is None:
        fix = "name a run with an in-job restart, e.g. one with the fault rank_sigkill"
        raise ConfigError([Problem("DIR", str(directory), "it has no in-job restart", fix)], "no table")
    return table
