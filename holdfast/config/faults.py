"""The section for faults on purpose. What each kind does in each phase is in fault_catalogue.yaml beside this file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.config.section import Real, Seconds, Section, Whole

FaultKind = Literal[
    "exception",
    "rank_sigkill",
    "rank_sigstop",
    "hang",
    "hang_gil",
    "rank_oom",
    "cuda_oom",
    "cuda_error",
    "nan_loss",
    "loss_spike",
    "slow_rank",
    "slow_disk",
    "full_disk",
    "readonly_disk",
    "writer_death",
    "bit_flip_staged",
    "bit_flip_stored",
    "network_partition",
    "dns_failure",
    "clock_jump",
    "sigterm_short_grace",
    "node_loss",
    "control_loss",
]
FaultPhase = Literal[
    "start_up", "forward", "backward", "collective", "optimizer", "stage", "persist", "commit", "restore"
]
OF_AN_ATTEMPT = ("start_up", "restore")
"""Phases that an attempt has once, before its first step."""
OF_A_STEP = ("forward", "backward", "collective", "optimizer")
"""Phases of the computation of any step."""
OF_A_SAVE = ("stage", "persist", "commit")
"""Phases that only a step with a save to the shared storage has."""


class Fault(Section):
    """One thing to break on purpose. Fires once in the life of a run directory, also across restarts."""

    kind: FaultKind
    """What breaks; docs/faults.md describes each kind, what detects it and how the run ends."""
    step: Annotated[Whole, Field(ge=1)]
    """When. Phases of a step: in this step. stage, persist, commit: at the first save after this step or a later one.
    start_up, restore: in the first attempt that finds step - 1 or a later one committed; 1 is the very first attempt.
    """
    rank: Annotated[Whole, Field(ge=0)] = 0
    """Rank at the time of the fault; without meaning for control_loss."""
    phase: FaultPhase = "forward"
    """In which part of the loop it acts. forward is the start of the step."""
    for_s: Seconds = 5
    """rank_sigstop: how long it is frozen. slow_disk: by how long the save is delayed. clock_jump: how far the wall
    clock goes forward. sigterm_short_grace: the grace period. Without meaning for other kinds."""
    for_steps: Annotated[Whole, Field(ge=1, le=100_000)] = 10
    """slow_rank only: for how many steps it is slow, from `step` on; a restart of its process ends it."""
    factor: Annotated[Real, Field(gt=1, le=100)] = 2
    """slow_rank only: how many times as long as usual its own work takes in each of these steps."""

    @property
    def id(self) -> str:
        """Names the record that keeps it from firing twice."""
        phase = "" if self.phase == "forward" else f"-{self.phase}"
        return f"{self.kind}-rank{self.rank}-step{self.step}{phase}"

    @property
    def by_runner(self) -> bool:
        """Whether it is done from outside the pods."""
        return self.kind in ("sigterm_short_grace", "node_loss", "control_loss")
