"""`holdfast checkpoint ls|verify|export`: what a run has saved, whether it is whole, and its weights for other tools.

Each action is holdfast/commands/checkpoint_<action>.py, imported only when it was asked for.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Declare the actions and their options."""
    parser = subparsers.add_parser(
        "checkpoint",
        help="list, verify and export what a run has saved",
        description="What a run has saved. Changes nothing in it. A step is leased while it is read, so that training "
        "does not delete it meanwhile.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_ls(actions)
    _add_verify(actions)
    _add_export(actions)


def main(args: argparse.Namespace) -> int:
    """The action's exit code. Raises ConfigError for bad input."""
    return int(import_module(f"holdfast.commands.checkpoint_{args.action}").main(args))


def _add_ls(actions: Any) -> None:
    parser = _add(
        actions,
        "ls",
        "list every step with its state, size, age, world size and attempt",
        "States: committed; damaged (committed, but a file is missing or has another size); torn (no commit marker in "
        "it: never restored); unfinished (still being written, or left by an attempt that died); aside (training went "
        "back behind it). A step that somebody reads shows its lease. Contents are not read: see `verify`.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_verify(actions: Any) -> None:
    parser = _add(
        actions,
        "verify",
        "compare every byte with the checksums of the commit marker",
        "Verifies every committed step, or one. Exit code 0: all whole, 1: damage found, 2: bad input.",
    )
    _add_step(parser, "only this committed step; default: all of them")
    parser.add_argument("--sampled", action="store_true", help="only each sixteenth block of 8 MiB and the last ones")


def _add_export(actions: Any) -> None:
    parser = _add(
        actions,
        "export",
        "write the weights in Hugging Face form",
        "Writes safetensors, config.json and, if it lies on this machine, the tokenizer into a new folder that "
        "AutoModelForCausalLM.from_pretrained loads. Every block that is read is verified. Exit code 0: done, 1: the "
        "checkpoint is damaged, 2: bad input or no room.",
    )
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="a folder that does not exist yet")
    _add_step(parser, "export this committed step; default: the newest")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="type of the weights; default: %(default)s"
    )
    parser.add_argument(
        "--max-shard-gb",
        type=_gigabytes,
        default=5.0,
        metavar="GB",
        help="largest file, and about the memory that is used; default: %(default)s",
    )


def _add(actions: Any, name: str, help_line: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_line, description=description)
    parser.add_argument("directory", metavar="DIR", type=Path, help="the --out folder of a run, or a run directory")
    return parser


def _add_step(parser: argparse.ArgumentParser, help_line: str) -> None:
    parser.add_argument("--step", type=int, metavar="N", help=help_line)


def _gigabytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
