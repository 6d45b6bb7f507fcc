"""Which committed steps a person means, and how sizes are written."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint_folder import Found, look
from holdfast.config import ConfigError, Problem, names


def committed_steps(run_dir: Path, asked: int | None) -> tuple[int, ...]:
    """Committed steps of a run, ascending; with `asked` only that one. Raises ConfigError listing what is there."""
    folder = run_dir / names.CHECKPOINTS
    return choose(folder, look(folder), asked)


def choose(folder: Path, found: Found, asked: int | None) -> tuple[int, ...]:
    """The same of a folder that has been looked at."""
    if not found.committed:
        if torn := sorted([*found.unfinished, *map(names.step_folder, found.damaged)]):
            why = f"no step in it is committed; unfinished or torn: {', '.join(torn)}"
        else:
            why = "no step has been saved in it"
        fix = "wait for the first commit, or name another run"
        raise ConfigError([Problem("DIR", str(folder), why, fix)], "no checkpoint")
    if asked is None:
        return found.committed
    if asked not in found.committed:
        there = ", ".join(map(str, found.committed))
        raise ConfigError([Problem("--step", asked, f"{folder} has no such committed step", f"name one of {there}")])
    return (asked,)


def size_text(count: float) -> str:
    """`930 B`, `1.2 MB`, `840.0 GB`: powers of 1000, as disks are sold."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
