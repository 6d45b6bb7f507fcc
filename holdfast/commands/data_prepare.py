"""`holdfast data prepare`: shows the progress of trainer/data/prepare, a process of its own: it has tokenizers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.commands.checkpoint_progress import Progress
from holdfast.commands.checkpoint_steps import size_text
from holdfast.config import ConfigError, Problem

ROOT = Path(__file__).resolve().parents[2]
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
    code, result = _follow(command)
    if code < 0:
        print(_killed(-code), file=sys.stderr)
        return EXIT_FAILED
    if code == 0:
        print("\n".join(_lines(args, result)))
    return code


def _follow(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run it and show its progress; exit code and result. Its complaints go to stderr directly."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result: dict[str, Any] = {}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        records = _records(process.stdout)
        begin = next(records, {})
        with Progress("tokenizing", int(begin.get("total", 0))) as progress:
            progress.advance(begin.get("done", 0))
            for record in records:
                progress.advance(record.get("advance", 0))
                result = record.get("result", result)
        return process.wait(), result
    finally:
        _end(process)
        process.stdout.close()


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects. A library that prints something to stdout does not end hours of work."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    cause = ", most likely for want of memory: use fewer --workers" if number == signal.SIGKILL else ""
    return f"data prepare: its process was killed by {name}{cause}. Run it again: pieces that are done are kept."


def _end(process: subprocess.Popen[str]) -> None:
    """After Ctrl-C the process has had the same signal and ends its workers; it is killed if that takes too long."""
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
