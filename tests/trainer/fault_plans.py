"""Which fault of the catalogue is tried where: every kind in every phase that a CPU allows has one place."""

from __future__ import annotations

import json
from typing import Any

from holdfast.config.fault_catalogue import PHASES, Row, catalogue

STEPS = 22
LETHAL = ("rank_sigkill", "hang", "hang_gil")
"""What only another process can end: tests/trainer/fault_deaths.py."""
BY_RUNNER = ("sigterm_short_grace", "node_loss", "control_loss")
"""What only a whole run can show: tests/e2e/test_faults.py, test_catalogue.py, test_spare.py, test_killed_pods.py."""
SETS = [
    f"training.steps={STEPS}",
    "model.layers=1",
    # Longer than a busy machine takes for a collective: none may end but by its fault.
    "recovery.process_group_timeout_s=12",
    # A writer that is replaced imports torch first.
    "checkpoint.persist_timeout_s=90",
    "recovery.checkpoint_section_timeout_s=120",
    "checkpoint.max_failed_saves=10",
]
SYNCHRONOUS = ("saves", "stored", "staged")
"""Plans that save after every step and wait for the commit, so that it is certain which step is the newest when a fault
strikes. The others save after every second step."""

Fault = dict[str, Any]


def of(kind: str, rank: int = 1, first: int = 2, apart: int = 2, **more: Any) -> list[Fault]:
    """A kind in all its phases, `apart` steps from one another; start-up and restore in the first attempts."""
    rows = [catalogue().row(kind, phase) for phase in PHASES]  # type: ignore[arg-type]
    return [
        {"kind": kind, "phase": row.phase, "rank": rank, "step": _step(row, first + apart * number), **more}
        for number, row in enumerate(row for row in rows if not row.refused)
    ]


def _step(row: Row, step: int) -> int:
    if row.phase == "start_up":
        return 1
    if row.phase == "restore":
        return 3  # in the attempt that finds step 2 committed: not the first
    return step


def _saves() -> list[Fault]:
    """One in every second save, so that never two fail in a row. What only rank 0 does is rank 0's."""
    faults: list[Fault] = []
    for kind in ("slow_disk", "full_disk", "readonly_disk", "writer_death"):
        for fault in of(kind, for_s=0.3):
            fault |= {"step": 2 + 2 * len(faults)} | ({"rank": 0} if fault["phase"] == "commit" else {})
            faults.append(fault)
    return faults


RAISE = {"kind": "exception", "rank": 0, "phase": "forward"}
PLANS: dict[str, list[Fault]] = {
    "clean": [],
    "raised": of("exception"),
    "memory": of("rank_oom", rank=0),
    "network": of("network_partition", rank=0) + of("dns_failure"),
    "saves": _saves(),
    "quiet": of("rank_sigstop", for_s=0.2)
    + of("slow_rank", rank=0, for_steps=3)
    + of("clock_jump", rank=0, first=12, for_s=3600)
    + [{**RAISE, "step": 19}],  # for what strikes in a restore
    # Damaged when it is written, when it is about to be read, and in between; each is then asked for.
    "stored": [
        {"kind": "bit_flip_stored", "phase": "persist", "rank": 0, "step": 6},
        {**RAISE, "step": 7},
        {"kind": "bit_flip_stored", "phase": "restore", "rank": 1, "step": 9},
        {**RAISE, "step": 12},
        {"kind": "bit_flip_stored", "phase": "forward", "rank": 0, "step": 16},
        {**RAISE, "step": 16},
    ],
    "staged": [{"kind": "bit_flip_staged", "phase": "stage", "rank": 1, "step": 10}, {**RAISE, "step": 11}],
    "not a number": of("nan_loss"),
    "spike": of("loss_spike"),
}


def sets_of(name: str) -> list[str]:
    """The overrides of cpu-test for a plan."""
    mode, every = ("sync", 1) if name in SYNCHRONOUS else ("async", 2)
    return [*SETS, f"checkpoint.mode={mode}", f"checkpoint.interval_steps={every}", f"faults={json.dumps(PLANS[name])}"]


def tried() -> set[tuple[str, str]]:
    """(kind, phase) of all plans."""
    return {(fault["kind"], fault["phase"]) for plan in PLANS.values() for fault in plan}
