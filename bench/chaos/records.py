"""What is kept of the kills: one line per seed, at once, and the sum of them as one JSON file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import json_lines
from bench.chaos import kept
from bench.demo import ROOT

KEPT = ROOT / "bench" / "results" / "cpu" / "checkpoint_kills.json"
CODE = (
    "trainer/checkpoint",
    "trainer/train.py",
    "holdfast/checkpoint_folder.py",
    "holdfast/leases.py",
    "holdfast/lineage.py",
    "holdfast/run_directory.py",
)
"""What was put to the test. If it changes, the kills of the former code say nothing and are counted no more."""


def code_sha256(root: Path = ROOT) -> str:
    """Hash of the names and contents of the Python files in CODE."""
    places = [root / place for place in CODE]
    files = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    return kept.sha256_of(files, root)


@dataclass
class Kill:
    """One kill and what came of it.

    step: the newest one that was committed at that moment. resumed_at: the step that the next attempt restored, or,
    where only writers died, the next one committed. lost_commits: steps seen committed that are newer than what was
    restored. seconds: from the beginning of the wait for the instant until the verdict; those of one run overlap.
    why: what was wrong.
    """

    seed: int
    victim: str
    aim: str
    phase: str
    step: int
    resumed_at: int | None = None
    lost_commits: int = 0
    hang: bool = False
    ok: bool = False
    seconds: float = 0.0
    why: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """A run and its kills. identical: final weights and optimizer state are the clean run's; None: it came to no end.

    why: what was wrong beside its kills.
    """

    run: int
    seeds: list[int]
    identical: bool | None
    looks: int
    seconds: float
    why: list[str] = field(default_factory=list)


class WorkFile:
    """JSON lines: first {code_sha256}, then one line per kill (`seed`) and per run (`run`).

    Kills of other code are set aside: the file gets another name, and counting begins anew.
    """

    def __init__(self, path: Path, code: str) -> None:
        self.path = path
        self.code = code
        self.kills: list[Kill] = []
        self.runs: list[Finished] = []
        for line in kept.begun(path, code):
            if "seed" in line:
                self.kills.append(Kill(**line))
            elif "run" in line:
                self.runs.append(Finished(**line))

    def add(self, found: Kill | Finished) -> None:
        """Append a line, durably."""
        json_lines.append(self.path, asdict(found))
        if isinstance(found, Kill):
            self.kills.append(found)
        else:
            self.runs.append(found)

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """Those that have no line yet."""
        return kept.missing(seeds, (kill.seed for kill in self.kills))


def folded(work: WorkFile) -> dict[str, Any]:
    """The sum of all lines."""
    kills = work.kills
    return {
        "kills": len(kills),
        "resumed": sum(kill.resumed_at is not None for kill in kills),
        "lost_commits": sum(kill.lost_commits for kill in kills),
        "wrong_weights": sum(run.identical is False for run in work.runs),
        "hangs": sum(kill.hang for kill in kills),
        "seeds_not_ok": [kill.seed for kill in kills if not kill.ok],
        "runs_not_ok": [run.run for run in work.runs if run.why or not run.identical],
        "runs": len(work.runs),
        "looks": sum(run.looks for run in work.runs),
        "code_sha256": work.code,
        "victims": dict(Counter(kill.victim for kill in kills)),
        "phases": dict(Counter(kill.phase for kill in kills)),
        "seconds": round(sum(run.seconds for run in work.runs), 1),
    }


def good(total: dict[str, Any]) -> bool:
    """Whether everything that is promised held."""
    bad = ("lost_commits", "wrong_weights", "hangs", "seeds_not_ok", "runs_not_ok")
    return total["kills"] == total["resumed"] and not any(total[key] for key in bad)


def keep(total: dict[str, Any], about: dict[str, Any], path: Path = KEPT) -> bool:
    """Write the result, unless it counts nothing or fewer kills of the same code. True if written."""
    return kept.keep("kills", total, about, path)
