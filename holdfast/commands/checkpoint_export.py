"""`holdfast checkpoint export`: picks the step and shows the progress of trainer/checkpoint/export.py.

That is a process of its own, because it has torch.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.commands.checkpoint_steps import committed_steps, size_text
from holdfast.commands.followed import follow
from holdfast.config import ConfigError, Problem, names
from holdfast.goodput.locate import locate_run

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
    code, result = follow(command, f"step {step}", END_LIMIT_S)
    if code == 0:
        print("\n".join(_lines(step, args.to, result)))
    return code


def _lines(step: int, to: Path, result: dict[str, Any]) -> list[str]:
    what = f"{result['parameters']:,} parameters as {result['dtype']}, {size_text(result['bytes'])}"
    files = "one file" if result["shards"] == 1 else f"{result['shards']} files"
    return [f"step {step} is exported to {to}: {what} in {files}", *result["notes"]]
