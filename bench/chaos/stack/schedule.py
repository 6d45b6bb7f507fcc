"""What a seed stands for: the size of the job, its layers, and what is broken when."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bench.chaos.stack.source import Expected, draw_faults, expected
from holdfast.config import RunConfig, load_profile

PROFILE = "cpu-test"
COMMON = (
    "training.global_batch_size=12",
    "training.micro_batch_size=1",  # 12 can be spread over 2, 3 and 4 ranks
    "training.min_step_s=0.05",
    "checkpoint.max_failed_saves=20",
    # Two faults of one kind at one step are two failures that look alike; this is not what a stop rule is to end.
    "recovery.same_step_limit=20",
    "recovery.max_restarts_without_progress=20",
    "recovery.unfit_wait_s=5",
    # On a machine that is shared by several jobs, every limit of cpu-test is met by patience only.
    "recovery.process_group_timeout_s=5",
    "recovery.in_process_soft_timeout_s=9",
    "recovery.in_process_hard_timeout_s=15",
    "recovery.in_process_heartbeat_timeout_s=6",
)
SHAPES = ((2, 1), (3, 1), (2, 2))
"""Nodes and ranks per node."""
STEPS = (24, 36)
"""Few lengths, since each needs a job in peace for each shape."""
LAYERS = ("pods", "job", "process")
"""What restarts: whole pods only (torchrun in them); ranks in the job; ranks in the job and attempts in the process."""


@dataclass(frozen=True)
class Schedule:
    """One job. local: a second tier of checkpoints on the nodes."""

    seed: int
    nodes: int
    ranks_per_node: int
    layers: str
    spares: int
    standby: bool
    mode: str
    local: bool
    interval: int
    steps: int
    faults: tuple[dict[str, Any], ...]

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        """The same for the same seed."""
        chance = random.Random(f"stack-{seed}")
        nodes, ranks_per_node = chance.choices(SHAPES, (65, 20, 15))[0]
        layers = chance.choices(LAYERS, (15, 40, 45))[0]
        in_job = layers != "pods"
        spares = int(in_job and chance.random() < 0.3)
        standby = in_job and chance.random() < 0.6
        mode = chance.choices(("async", "sync"), (85, 15))[0]
        local = mode == "async" and chance.random() < 0.2
        interval, steps = chance.randint(3, 6), chance.choice(STEPS)
        quiet = cls(seed, nodes, ranks_per_node, layers, spares, standby, mode, local, interval, steps, ())
        faults = draw_faults(
            seed,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            steps=steps,
            settings=quiet.settings(),
            load=_load,
        )
        return replace(quiet, faults=faults)

    @cached_property
    def expected(self) -> Expected:
        """How it must end, and who must notice what."""
        return expected(self.faults, self.config())

    def settings(self) -> list[str]:
        """Overrides of the profile, without the faults."""
        in_job = json.dumps(self.layers != "pods")
        return [
            *COMMON,
            f"cluster.nodes={self.nodes}",
            f"cluster.ranks_per_node={self.ranks_per_node}",
            f"training.steps={self.steps}",
            f"checkpoint.mode={self.mode}",
            f"checkpoint.interval_steps={self.interval}",
            f"checkpoint.local.interval_steps={2 if self.local else 'null'}",
            f"recovery.in_job={in_job}",
            f"recovery.in_process={json.dumps(self.layers == 'process')}",
            f"recovery.spares={self.spares}",
            f"recovery.standby={json.dumps(self.standby)}",
            f"recovery.short_pauses={json.dumps(self.standby)}",
        ]

    def config(self) -> RunConfig:
        """Its config. Raises ConfigError if a drawn one does not fit together."""
        return _load([*self.settings(), f"faults={json.dumps(list(self.faults))}"])

    def peace(self) -> RunConfig:
        """The config of a job in peace that must end with the same weights: nothing in it that cannot change them."""
        sets = [
            *COMMON,
            "training.min_step_s=0",
            f"training.steps={self.steps}",
            f"cluster.nodes={self.nodes}",
            f"cluster.ranks_per_node={self.ranks_per_node}",
            "checkpoint.interval_steps=1000",
        ]
        return _load(sets)

    def topology(self) -> str:
        """In a few words."""
        words = [f"{self.nodes}x{self.ranks_per_node}", self.layers, f"every {self.interval} of {self.steps}"]
        words += [f"+{self.spares}"] * (self.spares > 0) + ["standby"] * self.standby
        words += [self.mode] * (self.mode != "async") + ["local"] * self.local
        return " ".join(words)


def _load(sets: Sequence[str]) -> RunConfig:
    return load_profile(PROFILE, sets)
