"""Finds the run directory that a person means."""

from __future__ import annotations

from pathlib import Path

from holdfast.config import ConfigError, Problem, names

OUT_LINK = "run"
"""`holdfast run --out DIR` leaves the run directory at DIR/run."""

_MARKS = (names.EVENTS, names.GENERATION, names.RUN_YAML, names.CHECKPOINTS)


def locate_run(path: Path) -> Path:
    """The run directory: `path` itself, or `path`/run. Raises ConfigError if there is none."""
    fix = "name the --out folder of a run, or a run directory (<storage>/runs/<name>)"
    if not path.is_dir():
        why = "it is not a folder" if path.exists() else "it does not exist"
        raise ConfigError([Problem("DIR", str(path), why, fix)], "no run")
    for candidate in (path / OUT_LINK, path):
        if any((candidate / mark).exists() for mark in _MARKS):
            return candidate
    why = "it is empty" if not any(path.iterdir()) else "no run has left anything in it"
    raise ConfigError([Problem("DIR", str(path), why, fix)], "no run")
