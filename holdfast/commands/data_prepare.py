"""`holdfast data prepare`: shows the progress of trainer/data/prepare, a process of its own: it has tokenizers."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib.util import find_spec
from typing import Any

from holdfast.commands.checkpoint_steps import size_text
from holdfast.commands.followed import follow
from holdfast.config import ConfigError, Problem

EXIT_FAILED = 1
END_LIMIT_S = 30.0
"""For the process to end its workers, once it was interrupted."""


def main(args: argparse.Namespace) -> int:
    """Exit code of the preparation: 0 done, 1 failed or no room, 2 bad input. Raises ConfigError."""
    if args.tokenizer != "bytes" and find_spec("transformers") is None:
        fix = "install requirements.txt on Linux, or prepare where the trainer's image runs"
        raise ConfigError([Problem("--tokenizer", args.tokenizer, "transformers is not installed here", fix)], "data")
    command = [sys.executable, "-m", "trainer.data.prepare", args.source, "--to", str(args.to), "--json"]
    command += ["--tokenizer", args.tokenizer, "--text-key", args.text_key, "--workers", str(args.workers)]
    command += ["--files", args.files] if args.files is not None else []
    command += ["--revision", args.revision] if args.revision is not None else []
    code, result = follow(command, "tokenizing", END_LIMIT_S)
    if code < 0:
        print(_killed(-code), file=sys.stderr)
        return EXIT_FAILED
    if code == 0:
        print("\n".join(_lines(args, result)))
    return code


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    cause = ", most likely for want of memory: use fewer --workers" if number == signal.SIGKILL else ""
    return f"data prepare: its process was killed by {name}{cause}. Run it again: pieces that are done are kept."


def _lines(args: argparse.Namespace, result: dict[str, Any]) -> list[str]:
    lines = [
        f"{args.to}: {result['tokens']:,} tokens of {result['documents']:,} documents, {size_text(result['bytes'])}, "
        f"fingerprint {result['fingerprint']}"
    ]
    if result["kept"]:
        lines.append(f"{result['kept']} of {result['pieces']} pieces were there already")
    if result["left_out"]:
        lines.append(f"{result['left_out']} other files were left out")
    return [*lines, f"train on it with data.path: [{args.to.absolute()}] and data.tokenizer: {args.tokenizer}"]
