"""A process of the trainer's that a command runs and follows, because that has torch or tokenizers. It prints JSON
lines: {total, done} first, then {advance} and a {result}."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.commands.progress import Progress

ROOT = Path(__file__).resolve().parents[2]


def follow(command: list[str], title: str, end_limit_s: float) -> tuple[int, dict[str, Any]]:
    """Run it and show its progress; exit code and result. Its complaints go to stderr directly.

    end_limit_s: after Ctrl-C the process has had the same signal and cleans up; it is killed if that takes longer.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result: dict[str, Any] = {}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        records = _records(process.stdout)
        begin = next(records, {})
        with Progress(title, int(begin.get("total", 0))) as progress:
            progress.advance(begin.get("done", 0))
            for record in records:
                progress.advance(record.get("advance", 0))
                result = record.get("result", result)
        return process.wait(), result
    finally:
        _end(process, end_limit_s)
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


def _end(process: subprocess.Popen[str], limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
