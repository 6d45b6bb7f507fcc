"""The time limit of a step, learned from the steps seen: so that a hang is noticed after seconds, not after minutes.

NVRx can calculate limits itself. Its calculation is not used (docs/adr/0016): it has no floor, takes a collective over
all ranks, forgets what it saw with every restart, and would learn from saves and restores that were quick by chance.
The rule is the same: a factor times the longest seen. Only the limit of a step is learned, and it is only lowered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import RunConfig, names
from holdfast.run_directory import RunDirectory, read_json, write_atomically

WORTH_WRITING = 1.05
"""The record is written again when the longest step has grown by this factor."""


@dataclass(frozen=True)
class Seen:
    """steps: how many were seen. longest_s: the longest of them."""

    steps: int
    longest_s: float


class StepLimit:
    """One per rank process. Says when the rank monitor's limit must change; every rank has its own."""

    def __init__(self, config: RunConfig, run: RunDirectory, rank: int, world_size: int) -> None:
        self._r = config.recovery
        self._path = run.path / names.STEP_SEEN
        self._keeps = rank == 0
        self._key = _key(config, world_size)
        before = read_seen(self._path, self._key)
        self._steps, self._longest = before.steps, before.longest_s
        self._written = before.longest_s
        self._current = self._r.step_section_timeout_s

    def at_start(self) -> float | None:
        """The limit from earlier attempts, if they have seen enough."""
        return self._changed()

    def saw(self, seconds: float) -> float | None:
        """A step took so long; the new limit if it changes. Steps of the warm-up are not told."""
        self._steps += 1
        self._longest = max(self._longest, seconds)
        if self._keeps and self._steps >= self._r.step_timeout_after_steps:
            self._keep()
        return self._changed()

    def _changed(self) -> float | None:
        if not self._r.learn_step_timeout or self._steps < self._r.step_timeout_after_steps:
            return None
        learned = max(self._r.step_timeout_floor_s, self._r.step_timeout_factor * self._longest)
        limit = min(self._r.step_section_timeout_s, learned)
        if limit == self._current:
            return None
        logging.info(
            "a step may take %.1f s: the longest of %d took %.2f s (recovery.step_timeout_factor=%g, "
            "recovery.step_timeout_floor_s=%g)",
            limit,
            self._steps,
            self._longest,
            self._r.step_timeout_factor,
            self._r.step_timeout_floor_s,
        )
        self._current = limit
        return limit

    def _keep(self) -> None:
        if self._longest < self._written * WORTH_WRITING:
            return
        self._written = self._longest
        record = json.dumps({"key": self._key, "steps": self._steps, "longest_s": self._longest})
        # Aside: the step must not wait for the storage, and a lost record costs a later start some steps of learning.
        threading.Thread(target=_write, args=(self._path, record), daemon=True).start()


def read_seen(path: Path, key: str) -> Seen:
    """What earlier attempts have seen of steps like these; nothing if there is no such record."""
    record = read_json(path) or {}
    steps, longest = record.get("steps"), record.get("longest_s")
    if record.get("key") != key or not isinstance(steps, int) or not isinstance(longest, float):
        return Seen(0, 0.0)
    return Seen(steps, longest)


def _key(config: RunConfig, world_size: int) -> str:
    """Steps of another model, batch, data or machine, or of another number of ranks, say nothing about these."""
    sections = [section.model_dump(mode="json") for section in (config.model, config.data, config.training)]
    described = json.dumps([*sections, config.device, config.cluster.instance_type, world_size])
    return hashlib.sha256(described.encode()).hexdigest()[:12]


def _write(path: Path, record: str) -> None:
    try:
        write_atomically(path, record)
    except OSError as error:
        logging.warning("%s was not written: %s", path, error)
