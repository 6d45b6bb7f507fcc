"""Finds the run directory that a person means."""

from __future__ import annotations

from pathlib import Path

from holdfast.config import ConfigError, Problem, names

OUT_LINK = "run"
"""`holdfast run --out DIR` leaves the run directory at DIR/run."""

_MARKS = (names.EVENTS, names.GENERATION, names.RUN_YAML, names.CHECKPOINTS)


def locate_run(path: Path) -> Path:
    """The run directory: `path` itself, or `path`/run. Raises ConfigError if there is none, or it cannot be read."""
    try:
        for candidate in (path / OUT_LINK, path):
            if any((candidate / mark).exists() for mark in _MARKS):
                return candidate
        why = _why_none(path)
    except OSError as error:
        why = f"it cannot be read: {(error.strerror or str(error)).lower()}"
    fix = "name the --out folder of a run, or a run directory (<storage>/runs/<name>)"
    raise ConfigError([Problem("DIR", str(path), why, fix)], "no run")


def _why_none(path: Path) -> str:
    if not path.is_dir():
        return "it is not a folder" if path.exists() else "it does not exist"
    return "no run has left anything in it" if any(path.iterdir()) else "it is empty"
