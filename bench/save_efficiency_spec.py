"""What bench.save_efficiency compares, and what one of its processes is told. Known to the driver and to the arms."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from bench import checkpoint_spec


@dataclass(frozen=True)
class Way:
    """One row: an arm of the checkpoint bench. words: for the table."""

    arm: str
    words: str
    needs_cuda: bool = False


WAYS = {
    "holdfast": Way("holdfast", "**Holdfast**"),
    "nvrx_torch": Way(
        "nvrx_torch", "the article's asynchronous arm: `TorchAsyncCheckpoint` of local shards, "
        "waited for before the next save", needs_cuda=True,
    ),
    "sync": Way("torch_save", "the article's synchronous arm: `torch.save` of local shards"),
    "dcp": Way("dcp_sync", "torch DCP, `save`"),
}  # fmt: skip
"""In the order in which they run."""
SPEC_SIZES = ("world", "layers", "hidden", "intermediate", "heads", "kv_heads", "sequence", "threads")


@dataclass(frozen=True)
class Order:
    """What a rank does: `steps` steps with a save after every `every`-th. spec.micro_batch 0: find the batch that makes
    a step `step_s` long first."""

    spec: checkpoint_spec.Spec
    steps: int
    every: int
    step_s: float

    @property
    def saves(self) -> int:
        """The last one is after the last step."""
        return self.steps // self.every

    @property
    def sizes(self) -> dict[str, Any]:
        """What measurements must share to stand in one table. Each raw line has it."""
        of_run = {"steps": self.steps, "every": self.every, "step_s": self.step_s}
        return {"cuda": self.spec.cuda, "sizes": of_run | {name: getattr(self.spec, name) for name in SPEC_SIZES}}

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The opposite of `to_json`."""
        plain = json.loads(text)
        return cls(**plain | {"spec": checkpoint_spec.Spec(**plain["spec"])})
