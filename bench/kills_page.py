"""Sentences on what `make chaos` did, made from its kept results: kills at random instants, and whole jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.chaos.stack.records import KEPT as SCHEDULES
from bench.demo import ROOT

KEPT = ROOT / "bench" / "results" / "cpu" / "checkpoint_kills.json"


def headline(folder: Path) -> str:
    """What became of the runs that were killed. folder: of the document that says so."""
    kept = _read(KEPT)
    if kept is None:
        return "Not tried yet: `make chaos` makes the numbers for this place."
    victims = ", ".join(f"{name} {count}" for name, count in sorted(kept["victims"].items()))
    return (
        f"SIGKILL at {kept['kills']} random instants ({victims}) in {kept['runs']} runs that save every few steps: "
        f"{kept['resumed']} times training went on, {kept['lost_commits']} committed steps were lost, "
        f"{kept['wrong_weights']} runs ended with other weights than an unbroken one, {kept['hangs']} hung. The newest "
        f"committed checkpoint was verified {kept['looks']:,} times in between, whatever was being killed "
        f"([raw numbers]({os.path.relpath(KEPT, folder)}), commit {kept['commit']}; `make chaos` does it again)."
    )


def schedules_headline(folder: Path) -> str:
    """What became of whole jobs under random schedules of faults. folder: of the document that says so."""
    kept = _read(SCHEDULES)
    if kept is None:
        return "Not tried yet: `make chaos` makes the numbers for this place."
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(kept["kinds"].items()))
    terminal = sum(count for end, count in kept["ends"].items() if end.startswith("terminal"))
    late = kept["ends"].get("hang", 0)
    endless = f"; {late} had not ended when its time was over" * bool(late)
    failed = f", and {len(kept['failed'])} did not (seeds {', '.join(map(str, kept['failed']))})" * bool(kept["failed"])
    return (
        f"{kept['schedules']} whole jobs, each from the synthesized manifest through the local runner, under random "
        f"schedules of {sum(kept['kinds'].values())} faults ({kinds}): {kept['complete']} kept every promise{failed}. "
        f"{kept['compared'] - kept['wrong_weights']} of {kept['compared']} that became complete have the weights of a "
        f"job in peace, bit for bit; {terminal} ended for good, with the reason on record{endless}. "
        f"{kept['restarts']} restarts; the longest job took {kept['longest_s']:.0f} s "
        f"([raw numbers]({os.path.relpath(SCHEDULES, folder)}), commit {kept['commit']}; `make chaos` does it again)."
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept
