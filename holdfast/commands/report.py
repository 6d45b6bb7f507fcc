"""`holdfast report`: where a run's time went, as text, JSON or one HTML file. Reads the event logs; changes nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from holdfast.config import ConfigError, Problem
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.locate import locate_run
from holdfast.goodput.reader import read_run


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "report",
        help="show where a run's time went",
        description="Accounts every second of a run: goodput, failures and recoveries, checkpoints, doubts.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the --out folder of a run, or a run directory")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write one self-contained HTML page")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of tables")
    form.add_argument(
        "--breakdown-markdown",
        action="store_true",
        help="print only the parts of the in-job restarts, as a Markdown table",
    )


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    run_dir = locate_run(args.directory)
    ledger = account(read_run(run_dir))
    if not ledger.segments:
        fix = "wait until the run has started, or name another run"
        raise ConfigError([Problem("DIR", str(args.directory), "no event has been logged in it", fix)], "no report")
    name = run_dir.resolve().name
    if args.html:
        _write_page(ledger, name, args.html)
    if args.json:
        print(json.dumps(ledger.summary(), indent=2))
    elif args.breakdown_markdown:
        print(_breakdown(ledger, args.directory))
    else:
        from holdfast.goodput.report import console_for_report, print_report

        print_report(ledger, name, console_for_report())
    return 0


def _write_page(ledger: Ledger, name: str, path: Path) -> None:
    from holdfast.goodput.page import html_page

    try:
        path.write_text(html_page(ledger, name), encoding="utf-8")
    except OSError as error:
        fix = "name a file in an existing folder"
        raise ConfigError([Problem("--html", str(path), str(error.strerror).lower(), fix)], "no page") from None


def _breakdown(ledger: Ledger, directory: Path) -> str:
    from holdfast.goodput.report import breakdown_markdown

    table = breakdown_markdown(ledger.recoveries)
    if table is None:
        fix = "name a run with an in-job restart, e.g. one with the fault rank_sigkill"
        raise ConfigError([Problem("DIR", str(directory), "it has no in-job restart", fix)], "no table")
    return table
