"""`holdfast checkpoint ls`: one line per saved step. Reads markers and sizes, no contents, and starts at once."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoint_folder import damage, look, read_marker
from holdfast.commands.checkpoint_steps import size_text
from holdfast.commands.status import duration
from holdfast.config import names
from holdfast.goodput.locate import locate_run
from holdfast.run_directory import read_json

State = Literal["committed", "damaged", "torn", "unfinished", "aside"]


@dataclass(frozen=True)
class Saved:
    """One folder of a save. age_s: from a file time, for people only; no rule of Holdfast looks at file times."""

    folder: str
    """Below the run directory."""
    step: int | None
    state: State
    bytes: int
    age_s: float | None
    world_size: int | None
    attempt: str | None
    latest: bool = False
    leased_by: tuple[str, ...] = ()
    note: str = ""


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    run_dir = locate_run(args.directory)
    saves = list(saves_of(run_dir))
    disk = shutil.disk_usage(run_dir)
    if args.json:
        print(json.dumps(_record(run_dir, saves, disk.total, disk.free), indent=2))
        return 0
    if not saves:
        print(f"{run_dir / names.CHECKPOINTS}: no step has been saved yet")
    else:
        print("\n".join(_table(saves)))
    total = size_text(sum(save.bytes for save in saves))
    print(f"{total} in all; {size_text(disk.free)} of {size_text(disk.total)} are free there. Ages are file times.")
    return 0


def saves_of(run_dir: Path) -> Iterator[Saved]:
    """Everything that a run has saved, by step; what was set aside comes last."""
    folder = run_dir / names.CHECKPOINTS
    latest, leased, now = _latest(folder), _leases(folder), time.time()
    found = look(folder)
    for name in sorted([*map(names.step_folder, (*found.committed, *found.damaged)), *found.unfinished]):
        yield _saved(run_dir, folder / name, now, latest == name, leased.get(names.step_of(name), ()))
    for path in sorted((run_dir / names.ASIDE).glob(f"*/{names.STEP_PREFIX}*")):
        yield _saved(run_dir, path, now, aside=True)


def _saved(
    run_dir: Path, path: Path, now: float, latest: bool = False, leased_by: tuple[str, ...] = (), aside: bool = False
) -> Saved:
    folder, marker = path.relative_to(run_dir).as_posix(), read_marker(path)
    problems = [] if marker is None else list(damage(path, marker.files, marker.block_bytes, every=None))
    if marker is None or (problems and read_marker(path) is None):  # the latter: retention deletes it at this moment
        step, attempt = _from_name(path.name)
        state, note = _uncommitted(path)
        return Saved(folder, step, state, _bytes_in(path), _age(path, now), None, attempt, latest, leased_by, note)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Saved(
        folder=folder,
        step=marker.step,
        state="aside" if aside else "damaged" if problems else "committed",
        bytes=marker.bytes,
        age_s=_age(path / names.COMMITTED, now),
        world_size=marker.world_size,
        attempt=marker.attempt,
        latest=latest,
        leased_by=leased_by,
        note=problems[0].removeprefix(f"{path.name}/") + more if problems else "",
    )


def _uncommitted(path: Path) -> tuple[State, str]:
    if path.name.endswith(names.PARTIAL_SUFFIX):
        return "unfinished", ""
    if (path / names.COMMITTED).exists():
        return "torn", "its commit marker cannot be read: damaged, or of another version of Holdfast"
    return "torn", "no commit marker in it"


def _from_name(name: str) -> tuple[int | None, str | None]:
    """Step and attempt of `step-00000030.g1-c0-r0-s2.partial`."""
    step, _, rest = name.partition(".")
    attempt = rest.removesuffix(names.PARTIAL_SUFFIX.lstrip(".")).rstrip(".").rpartition("-s")[0]
    return names.step_of(step), attempt or None


def _bytes_in(path: Path) -> int:
    total = 0
    for entry in path.rglob("*"):
        try:
            total += entry.stat().st_size if entry.is_file() else 0
        except OSError:
            pass  # it is being written, or deleted, at this moment
    return total


def _age(path: Path, now: float) -> float | None:
    try:
        return max(0.0, now - path.stat().st_mtime)
    except OSError:
        return None


def _latest(folder: Path) -> str | None:
    try:
        return (folder / names.LATEST).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _leases(folder: Path) -> dict[int | None, tuple[str, ...]]:
    """Who says that they read which step. One that was killed stays until training looks after the leases."""
    leases: dict[int | None, tuple[str, ...]] = {}
    for path in sorted((folder / names.LEASES).glob("*.json")):
        record = read_json(path) or {}
        who = f"{record.get('who')} (host {record.get('host')}, pid {record.get('pid')})"
        step = record.get("step")
        if isinstance(step, int):
            leases[step] = (*leases.get(step, ()), who)
    return leases


def _table(saves: list[Saved]) -> list[str]:
    rows: list[tuple[str, ...]] = [("step", "state", "size", "age", "ranks", "attempt", "")]
    rows += [_row(save) for save in saves]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = [str.rjust, str.ljust, str.rjust, str.rjust, str.rjust, str.ljust, str.ljust]
    return [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(save: Saved) -> tuple[str, ...]:
    words = ["LATEST"] if save.latest else []
    words += [f"leased by {who}" for who in save.leased_by]
    words += [save.note] if save.note else []
    words += [save.folder] if save.state in ("unfinished", "aside") else []
    return (
        "?" if save.step is None else str(save.step),
        save.state,
        size_text(save.bytes),
        "?" if save.age_s is None else duration(save.age_s),
        "?" if save.world_size is None else str(save.world_size),
        save.attempt or "?",
        "; ".join(words),
    )


def _record(run_dir: Path, saves: list[Saved], disk_bytes: int, free_bytes: int) -> dict[str, Any]:
    return {
        "run": str(run_dir),
        "saves": [asdict(save) for save in saves],
        "bytes": sum(save.bytes for save in saves),
        "file_system": {"bytes": disk_bytes, "free_bytes": free_bytes},
    }
