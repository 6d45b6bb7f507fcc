"""The sentence on what kills at random instants did, made from the kept result of `make chaos`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.demo import ROOT

KEPT = ROOT / "bench" / "results" / "cpu" / "checkpoint_kills.json"


def headline(folder: Path) -> str:
    """What became of the runs. folder: of the document that says so."""
    if not KEPT.exists():
        return "Not tried yet: `make chaos` makes the numbers for this place."
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    victims = ", ".join(f"{name} {count}" for name, count in sorted(kept["victims"].items()))
    return (
        f"SIGKILL at {kept['kills']} random instants ({victims}) in {kept['runs']} runs that save every few steps: "
        f"{kept['resumed']} times training went on, {kept['lost_commits']} committed steps were lost, "
        f"{kept['wrong_weights']} runs ended with other weights than an unbroken one, {kept['hangs']} hung. The newest "
        f"committed checkpoint was verified {kept['looks']:,} times in between, whatever was being killed "
        f"([raw numbers]({os.path.relpath(KEPT, folder)}), commit {kept['commit']}; `make chaos` does it again)."
    )
