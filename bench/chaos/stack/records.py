"""What is kept of the schedules: one line per seed, at once, and the sum of them as one JSON file."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import json_lines
from bench.chaos import kept
from bench.chaos.stack.schedule import PROFILE
from bench.demo import ROOT

KEPT = ROOT / "bench" / "results" / "cpu" / "chaos.json"
LINES = "chaos_schedules.jsonl"
"""Beside the sum: its lines, so that a campaign goes on in another copy of the repository."""
CODE = (
    "trainer",
    "k8s",
    "holdfast",
    "bench/chaos/stack/source.py",
    "bench/chaos/stack/schedule.py",
    "bench/chaos/stack/judge.py",
    "requirements.txt",
)
"""What was put to the test, and what decides what a seed means and whether it is good."""
NOT_PUT_TO_THE_TEST = (
    "holdfast/commands/check",
    "holdfast/commands/plan",
    "holdfast/commands/report",
    "holdfast/commands/status",
    "holdfast/config/prices.py",
    "holdfast/goodput/model/",
    "holdfast/goodput/planner/",
    "holdfast/goodput/report.py",
    "holdfast/goodput/simulate/",
    "holdfast/report/",
)
"""Beginnings of paths: planning, pages and commands for people. No job runs them, and no verdict comes of them."""
_PROFILES = "holdfast/config/profiles/"
_KINDS_OF_FILE = (".py", ".yaml", ".txt")


def code_sha256(root: Path = ROOT) -> str:
    """Hash of the names and contents of the files in CODE."""
    files = [path for place in CODE for path in _below(root / place)]
    return kept.sha256_of((path for path in files if _decides(path.relative_to(root).as_posix())), root)


def _below(there: Path) -> list[Path]:
    paths = sorted(there.rglob("*")) if there.is_dir() else [there]
    return [path for path in paths if path.suffix in _KINDS_OF_FILE]


def _decides(name: str) -> bool:
    """Whether a file can change what becomes of a schedule. Of the profiles, only one is used."""
    if name.startswith(_PROFILES):
        return name == f"{_PROFILES}{PROFILE}.yaml"
    return not name.startswith(NOT_PUT_TO_THE_TEST)


@dataclass(frozen=True)
class Line:
    """One schedule and what came of it.

    kinds: of the faults that struck; drawn: ids of all that were to strike. end: how the job ended; expected: how it
    had to. identical: whether its weights are those of the job in peace; None: nothing to compare. seconds: wall time.
    restarts: attempts after the first. unattributed: part of the wall time. why: every promise that was not kept.
    """

    seed: int
    topology: str
    drawn: list[str]
    kinds: list[str]
    expected: str
    end: str
    identical: bool | None
    seconds: float
    restarts: int
    unattributed: float
    why: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.why


class WorkFile:
    """JSON lines: first {code_sha256}, then one line per seed. Lines of other code are set aside: the file gets another
    name, and counting begins anew."""

    def __init__(self, path: Path, code: str) -> None:
        self.path = path
        self.code = code
        self.lines = [Line(**record) for record in kept.begun(path, code)]

    def add(self, line: Line) -> None:
        """Append a line, durably."""
        json_lines.append(self.path, asdict(line))
        self.lines.append(line)

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """Those that have no line yet."""
        return kept.missing(seeds, (line.seed for line in self.lines))


def folded(work: WorkFile) -> dict[str, Any]:
    """The sum of all lines. complete: schedules that ended as they had to, with every promise kept."""
    lines = work.lines
    return {
        "schedules": len(lines),
        "complete": sum(line.ok for line in lines),
        "failed": sorted(line.seed for line in lines if not line.ok),
        "kinds": dict(sorted(Counter(kind for line in lines for kind in line.kinds).items())),
        "ends": dict(sorted(Counter(line.end for line in lines).items())),
        "compared": sum(line.identical is not None for line in lines),
        "wrong_weights": sum(line.identical is False for line in lines),
        "restarts": sum(line.restarts for line in lines),
        "seconds": round(sum(line.seconds for line in lines), 1),
        "longest_s": max((line.seconds for line in lines), default=0.0),
        "most_unattributed": max((line.unattributed for line in lines), default=0.0),
        "code_sha256": work.code,
    }


def good(total: dict[str, Any]) -> bool:
    """Whether everything that is promised held."""
    return not total["failed"] and total["schedules"] == total["complete"]


def keep(work: WorkFile, about: dict[str, Any], path: Path = KEPT) -> bool:
    """Write the result and its lines, unless it counts nothing or fewer schedules of the same code. True if written."""
    written = kept.keep("schedules", folded(work), about, path)
    if written:
        shutil.copyfile(work.path, path.with_name(LINES))
    return written


def begun_elsewhere(work: Path, code: str, path: Path = KEPT) -> None:
    """Go on with the lines that are kept beside a result, if they are of this code and nothing was begun here."""
    lines = path.with_name(LINES)
    first = json_lines.read([lines])[:1]
    if not work.exists() and first == [{"code_sha256": code}]:
        work.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lines, work)
