"""`holdfast COMMAND`. Only the module of the command that was asked for is imported, so that each starts at once."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TextIO

from holdfast import __version__
from holdfast.config.problems import EXIT_BAD_CONFIG, ConfigError

EXIT_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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

    Exit code: the command's; 2 for a bad option or a bad config, with every problem on stderr; 130 after Ctrl-C; 1 if
    the output cannot be written.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _print_all_characters()
    try:
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # what does not fit is to be noticed here, not when Python exits
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        # Which of them it was is not said: an error of write() names no file.
        why = os.strerror(error.errno).lower()
        print(f"the output, or a file of this command, cannot be written: {why}", file=sys.stderr)
        if _is_full(sys.stdout):
            _drop_output()
        return 1


def _is_full(stream: TextIO | None) -> bool:
    """Whether it still holds what it could not write."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return True
    return False


def _run(words: Sequence[str]) -> int:
    try:
        parser, modules = _parser(words)
        args = parser.parse_args(words)
        return int(modules[args.command].main(args))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG


def _print_all_characters() -> None:
    """A log may hold half a character (a lone surrogate), and a terminal may know few: neither is to end a command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Python would fail once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
