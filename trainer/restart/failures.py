"""The stop rule: the same exception at the same step on several attempts ends the run, since a restart repeats it."""

from __future__ import annotations

import json
import traceback
from typing import Any

from holdfast.config import names
from holdfast.run_directory import RunDirectory, Terminal, read_json, write_atomically
from trainer.runtime import Attempt

CONSEQUENCES = ("Connection closed by peer", "Connection reset", "gloo", "NCCL", "Broken pipe", "Timed out waiting")
"""Messages of a collective whose peer failed. The peer's own record counts, this one does not."""


def fingerprint(error: BaseException) -> str:
    """Type and place of an exception: the same bug has the same fingerprint, whatever addresses its message holds."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].name}" if frames else "?"
    return f"{type(error).__name__} at {place}"


def is_consequence(error: BaseException) -> bool:
    """Whether the exception says only that another rank failed."""
    text = str(error)
    return any(word in text for word in CONSEQUENCES)


def record(
    run: RunDirectory, attempt: Attempt, rank: int, step: int, error: BaseException, limit: int, *, counts: bool = True
) -> Terminal | None:
    """Record a failed attempt; write TERMINAL and return it once `limit` attempts failed alike at this step.

    counts: False for an end that has a rule of its own; the record then only says why the process ended.
    """
    failure = {
        "attempt": str(attempt),
        "rank": rank,
        "step": step,
        "fingerprint": fingerprint(error),
        "consequence": is_consequence(error) or not counts,
        "message": str(error)[:2000],
        "traceback": "".join(traceback.format_exception(error))[-8000:],
    }
    write_atomically(run.attempts / f"{attempt}.rank{rank}.json", json.dumps(failure, indent=1))
    if failure["consequence"]:
        return None
    alike = {other["attempt"] for other in _failures(run) if _key(other) == _key(failure)}
    if len(alike) < limit:
        return None
    reason = (
        f"rank {rank}: {failure['fingerprint']} at step {step} on {len(alike)} attempts ({', '.join(sorted(alike))}): "
        f"{failure['message']}. Its traceback is in {names.ATTEMPTS}/{attempt}.rank{rank}.json. "
        "A restart would repeat it."
    )
    terminal = Terminal(names.EXIT_GIVE_UP, reason, rank=rank, step=step, attempt=str(attempt))
    run.write_terminal(terminal, attempt.generation)
    return terminal


def _key(failure: dict[str, Any]) -> tuple[Any, Any, Any]:
    return failure.get("fingerprint"), failure.get("step"), failure.get("consequence")


def _failures(run: RunDirectory) -> list[dict[str, Any]]:
    records = (read_json(path) for path in run.attempts.glob("*.rank*.json"))
    return [found for found in records if found is not None and "attempt" in found]
