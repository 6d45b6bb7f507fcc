"""`holdfast resume`: go on with the run that a folder holds, with the config that it was started with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.commands import run
from holdfast.commands.set_option import add_set


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "resume",
        help="go on with a run directory, also after a terminal failure",
        description="Runs the job of DIR again from its newest committed checkpoint. A run that has ended for good "
        "(TERMINAL.json) is refused unless --clear-terminal says that the cause is mended.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the --out folder of an earlier run")
    parser.add_argument("--clear-terminal", action="store_true", help="set TERMINAL.json aside as TERMINAL.<n>.json")
    add_set(parser, "change one key of the run's config for good")
    run.add_runner_options(parser)


def main(args: argparse.Namespace) -> int:
    """The run's exit code. Raises ConfigError for bad input."""
    return run.resume(
        args.directory,
        overrides=args.overrides,
        clear_terminal=args.clear_terminal,
        port=args.port,
        explain=args.explain,
    )
