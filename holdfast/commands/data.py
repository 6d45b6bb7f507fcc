"""`holdfast data prepare`: tokenizes data ahead of training.

Each action is holdfast/commands/data_<action>.py, imported only when it was asked for.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Declare the actions and their options."""
    parser = subparsers.add_parser(
        "data", help="tokenize data ahead of training", description="Data for training. See docs/data.md."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_prepare(actions)


def main(args: argparse.Namespace) -> int:
    """The action's exit code. Raises ConfigError for bad input."""
    return int(import_module(f"holdfast.commands.data_{args.action}").main(args))


def _add_prepare(actions: Any) -> None:
    parser = actions.add_parser(
        "prepare",
        help="make a folder of tokens that data.path or data.mixture can name",
        description="Tokenizes text, JSON lines, parquet or a Hugging Face data set into a folder that training reads "
        "as it is. A second call with the same arguments goes on where the first stopped. A token for gated data sets "
        "and tokenizers is taken from HF_TOKEN. Exit code 0: done, 1: failed or no room, the same command goes on, "
        "2: bad input.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a file, a folder of .txt, .jsonl, .json or .parquet files (also .gz, .bz2, .zst), or the name of a data "
        "set on the hub, like allenai/c4",
    )
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="where the tokens go")
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        help="`bytes`, or the name or folder of a Hugging Face tokenizer; what data.tokenizer will say. "
        "Default: %(default)s",
    )
    parser.add_argument("--files", metavar="PATTERN", help="only files whose path below SOURCE matches, '*' included")
    parser.add_argument("--revision", help="of a data set on the hub; default: its newest commit")
    parser.add_argument("--text-key", metavar="KEY", default="text", help="key or column of the text; default: text")
    parser.add_argument(
        "--workers",
        type=_workers,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes; the result does not depend on it. Default: the cores of this machine (%(default)s)",
    )


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)
