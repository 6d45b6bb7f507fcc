"""`holdfast checkpoint export`: picks the step and shows the progress of trainer/checkpoint/export.py.

That is a process of its own, because it has torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.commands.checkpoint_progress import Progress
from holdfast.commands.checkpoint_steps import committed_steps, size_text
from holdfast.config import ConfigError, Problem, names
from holdfast.goodput.locate import locate_run

ROOT = Path(__file__).resolve().parents[2]
END_LIMIT_S = 60.0
"""For the exporting process to remove what is half-written, once it was interrupted."""


def main(args: argparse.Namespace) -> int:
    """Exit code of the export: 0 done, 1 the checkpoint is damaged, 2 bad input. Raises ConfigError."""
    run_dir = locate_run(args.directory)
    step = committed_steps(run_dir, args.step)[-1]
    if find_spec("torch") is None:
        fix = "install requirements.txt on Linux, or export where the trainer's image runs"
        raise ConfigError([Problem("export", sys.executable, "torch is not installed here", fix)], "no export")
    folder = run_dir / names.CHECKPOINTS / names.step_folder(step)
    command = [sys.executable, "-m", "trainer.checkpoint.export", str(folder.absolute())]
    command += ["--to", str(args.to.absolute()), "--dtype", args.dtype, "--max-shard-gb", str(args.max_shard_gb)]
    code, result = _follow(command, f"step {step}")
    if code == 0:
        print("\n".join(_lines(step, args.to, result)))
    return code


def _follow(command: list[str], title: str) -> tuple[int, dict[str, Any]]:
    """Run the export and show its progress; exit code and result. Its complaints go to stderr directly."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result: dict[str, Any] = {}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        total = int(json.loads(process.stdout.readline() or "{}").get("total", 0))
        with Progress(title, total) as progress:
            for line in process.stdout:
                record = json.loads(line)
                progress.advance(record.get("advance", 0))
                result = record.get("result", result)
        return process.wait(), result
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """After Ctrl-C the export has had the same signal and cleans up; it is killed if that takes too long."""
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _lines(step: int, to: Path, result: dict[str, Any]) -> list[str]:
    what = f"{result['parameters']:,} parameters as {result['dtype']}, {size_text(result['bytes'])}"
    files = "one file" if result["shards"] == 1 else f"{result['shards']} files"
    return [f"step {step} is exported to {to}: {what} in {files}", *result["notes"]]
