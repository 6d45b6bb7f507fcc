"""`holdfast COMMAND`. Only the module of the command that was asked for is imported, so that each starts at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from holdfast import __version__
from holdfast.config.problems import EXIT_BAD_CONFIG, ConfigError

EXIT_INTERRUPTED = 130

COMMANDS = {
    "run": "train on this machine: synthesize the manifest of a profile and execute it",
    "resume": "go on with a run directory, also after a terminal failure",
    "check": "judge a config, and show what follows from it, before it costs anything",
    "plan": "what a run will reach, what to change, and what each change is worth",
    "status": "what a run directory holds: owner, progress, checkpoints",
    "report": "where the time of a run went",
    "checkpoint": "list, verify and export what a run has saved",
    "data": "tokenize data ahead of training",
}
"""In the order of `holdfast --help`. Each is holdfast/commands/<name>.py."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; argv defaults to the process's own.

    Exit code: the command's; 2 for a bad option or a bad config, with every problem on stderr; 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, modules = _parser(words)
        args = parser.parse_args(words)
        return int(modules[args.command].main(args))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would fail once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser(words: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, Any]]:
    """The parser, complete for the command in words and with names only for the others; and that command's module."""
    parser = argparse.ArgumentParser(prog="holdfast", description="Training that does not stop when hardware does.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    modules: dict[str, Any] = {}
    for name, help_line in COMMANDS.items():
        module = f"holdfast.commands.{name}"
        if find_spec(module) is None:
            continue
        if name == asked:
            modules[name] = import_module(module)
            modules[name].add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=help_line)
    return parser, modules
