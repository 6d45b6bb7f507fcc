"""What the checkpoint bench compares, and what one of its processes is told. Known to the driver and to the arms."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

STEP_OVER_COPY = 2.6
"""Steps are made so many times as long as the copy of a shard to host memory. The device computes slower beside a copy,
some 5 ms for 17 GB, however long the step is; on a cluster, where a shard is a few gigabytes, steps are ten times as
long as the copy and longer. TIGHT_OVER_COPY shows what a step costs that the copy just fits into."""
TIGHT_OVER_COPY = 1.55
"""The same for the row at a step that the copy just fits into."""
SHORT_OVER_COPY = 0.6
"""The same for the row at a step that is shorter than the copy."""
GOAL = 0.01
"""A save may cost this part of a step."""
FIRST_BLOCKED_GOAL_S = 0.1
WRITE_GOAL = 0.9
"""The background write reaches this part of a plain threaded writer's bandwidth."""


@dataclass(frozen=True)
class Method:
    """One way of saving. saves: how many count. first_counts: the first is as good as the others (nothing is set up by
    it), so that it is not one more. step: which of the calibrated steps."""

    saves: int
    needs_cuda: bool = False
    first_counts: bool = False
    step: Literal["long", "tight", "short"] = "long"
    arm: str = ""
    """The arm that does it; empty: of the same name."""


METHODS = {
    "holdfast": Method(saves=20),
    "holdfast_short_step": Method(saves=8, step="short", arm="holdfast"),
    "holdfast_tight_step": Method(saves=10, step="tight", arm="holdfast"),
    "nvrx_dcp": Method(saves=5, needs_cuda=True),
    "nvrx_torch": Method(saves=5, needs_cuda=True),
    "dcp_async_thread": Method(saves=5),
    "dcp_async_process": Method(saves=5),
    "dcp_sync": Method(saves=3, first_counts=True),
    "torch_save": Method(saves=3, first_counts=True),
}
"""In the order in which they run: what matters most comes first, in case the machine is taken away."""
MICRO_BATCH = {"long": "micro_batch", "tight": "tight_micro_batch", "short": "short_micro_batch"}
"""Key of the calibration that holds the samples per rank of each step."""
CALIBRATE, WRITE, PROFILE = "calibrate", "write", "profile"
"""Three more processes: sizes and speeds that all arms share, the bandwidth of the background write, and a trace of our
save on the device."""


@dataclass(frozen=True)
class Spec:
    """Orders to the ranks of one process group. Sizes in bytes, times in seconds.

    block: steps without a save before and after each save. lead_in: steps before the first save. micro_batch: 0 while
    it is not calibrated. limit_s: longest time from a save to the end of its write. shard_bytes, write_rounds: for the
    write bandwidth only.
    """

    arm: str
    method: str
    run: str
    raw: str
    target: str
    cuda: bool
    world: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    sequence: int
    threads: int
    saves: int
    block: int = 6
    lead_in: int = 20
    micro_batch: int = 0
    limit_s: float = 180.0
    write_rounds: int = 5
    shard_bytes: int = 0

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The opposite of `to_json`."""
        return cls(**json.loads(text))
