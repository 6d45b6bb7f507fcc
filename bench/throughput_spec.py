"""What the throughput bench compares, and what one of its processes is told. Known to the driver and to the arms."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.config.schema import Model

HOLDFAST, EAGER, TITAN = "holdfast", "eager_fsdp", "torchtitan"
ARMS = (HOLDFAST, EAGER, TITAN)
GOALS = {"8b": 0.45, "1gpu": 0.50}
"""MFU with full attention counted that ours is to reach, by model."""


@dataclass(frozen=True)
class Shape:
    """A Llama and what it is trained on. title: of the rows. samples: per step over all ranks, the same in all arms."""

    title: str
    gpus: int
    samples: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    rope_theta: float = 500000.0

    @property
    def model(self) -> Model:
        """The same as a section of a run's config."""
        return Model(
            family="llama",
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            vocab_size=self.vocabulary,
            max_positions=self.sequence,
            rope_theta=self.rope_theta,
            dtype="bfloat16",
        )


SHAPES = {
    "8b": Shape("llama-3.1-8b", 2, 4, 32, 4096, 14336, 32, 8, 128256, 8192),
    # Blocks of Llama-3.2-3B. Its embeddings are tied and these are not: torchtitan's Llama cannot.
    "1gpu": Shape("llama-3b", 1, 4, 28, 3072, 8192, 24, 8, 128256, 8192),
    # Weights, gradients and moments of all of it leave room for one sample, which then pays for a whole update.
    "8b-1gpu": Shape("llama-3.1-8b", 1, 1, 32, 4096, 14336, 32, 8, 128256, 8192),
}
CPU_SHAPES = {
    "8b": Shape("tiny-8b", 2, 4, 3, 64, 192, 4, 2, 512, 64),
    "1gpu": Shape("tiny", 1, 4, 2, 64, 192, 4, 2, 512, 64),
    "8b-1gpu": Shape("tiny-8b", 1, 1, 3, 64, 192, 4, 2, 512, 64),
}
"""The same order of things, to try the bench out without a GPU."""


@dataclass(frozen=True)
class Sizes:
    """What measurements must share to stand in one table. steps: timed ones."""

    cuda: bool
    warmup: int
    steps: int

    @property
    def shapes(self) -> dict[str, Shape]:
        """By model."""
        return SHAPES if self.cuda else CPU_SHAPES

    def of(self, model: str) -> dict[str, Any]:
        """What each raw line of a trial says of them."""
        counts = {"warmup": self.warmup, "steps": self.steps}
        return {"cuda": self.cuda, "sizes": counts | asdict(self.shapes[model])}


@dataclass(frozen=True)
class Trial:
    """One arm with one setting, in processes of its own. loss_chunk: tokens per piece of output layer and loss; ours
    alone has it."""

    arm: str
    model: str
    micro_batch: int
    checkpointing: Literal["none", "selective", "full"]
    compile: bool
    loss_chunk: int | None = None

    @property
    def name(self) -> str:
        """Names it in raw file and command line."""
        parts = [self.model, self.arm, self.checkpointing, f"mb{self.micro_batch}"]
        parts += ["compile"] if self.compile else ["eager"]
        return "/".join(parts) + (f"/chunk{self.loss_chunk}" if self.loss_chunk else "")


TRIALS = (
    Trial(HOLDFAST, "8b", 2, "none", True, 2048),
    Trial(HOLDFAST, "1gpu", 4, "none", True, 2048),
    Trial(HOLDFAST, "8b-1gpu", 1, "selective", True, 2048),
    Trial(EAGER, "8b", 1, "none", False),
    Trial(TITAN, "8b", 2, "selective", True),
    Trial(TITAN, "8b", 1, "none", True),
    Trial(EAGER, "8b", 2, "full", False),
    Trial(EAGER, "1gpu", 1, "none", False),
    Trial(TITAN, "8b-1gpu", 1, "selective", True),
    Trial(EAGER, "8b-1gpu", 1, "full", False),
    Trial(HOLDFAST, "8b-1gpu", 1, "none", True, 2048),
    Trial(TITAN, "8b-1gpu", 1, "none", True),
    Trial(EAGER, "8b-1gpu", 1, "none", False),
    Trial(TITAN, "1gpu", 2, "none", True),
    Trial(HOLDFAST, "8b", 2, "selective", True, 2048),
    Trial(EAGER, "8b", 1, "full", False),
    Trial(HOLDFAST, "8b", 1, "none", True, 2048),
    Trial(HOLDFAST, "8b", 2, "selective", False, 2048),
    Trial(EAGER, "1gpu", 2, "full", False),
    Trial(TITAN, "1gpu", 1, "none", True),
    Trial(HOLDFAST, "1gpu", 2, "none", True, 2048),
    Trial(TITAN, "8b", 2, "none", True),
    Trial(EAGER, "1gpu", 2, "none", False),
)
"""In the order in which they run: what the goals ask first, then what each of the others is likely to be best at. Of
the others every setting that computes nothing again is tried, up to the first that holdfast/config/gpu_memory.py says
does not fit, by little: where the GPU says so too, its row is the proof. More samples are left out. That torchtitan
computes every second matrix product again is its own choice."""


@dataclass(frozen=True)
class Spec:
    """Orders to the ranks of one process group. timed: or a trace alone."""

    trial: Trial
    sizes: Sizes
    run: str
    raw: str
    folder: str
    """Of their own, for what an arm wants to write."""
    timed: bool
    trace_steps: int

    @property
    def shape(self) -> Shape:
        """Of the trial's model."""
        return self.sizes.shapes[self.trial.model]

    @property
    def cuda(self) -> bool:
        """On GPUs."""
        return self.sizes.cuda

    @property
    def world(self) -> int:
        """Ranks."""
        return self.shape.gpus

    @property
    def passes(self) -> int:
        """Forward passes per step of each rank."""
        return self.shape.samples // (self.world * self.trial.micro_batch)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The opposite of `to_json`."""
        plain = json.loads(text)
        return cls(**plain | {"trial": Trial(**plain["trial"]), "sizes": Sizes(**plain["sizes"])})
