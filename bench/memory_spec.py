"""Settings whose peak GPU memory bench.memory predicts and measures, and what its processes are told. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from holdfast.config import RunConfig, load_profile

STEPS = 3
"""Steps of each setting: the first one sets up, the peak of the others is that of a long run."""
RANKS = 2
"""GPUs, unless it is said otherwise; a machine with one has larger shards."""
GOAL = 0.10
"""A prediction may be off by this part of what was measured."""
LLAMA_8B = (
    "model.hidden_size=4096",
    "model.intermediate_size=14336",
    "model.heads=32",
    "model.kv_heads=8",
    "model.vocab_size=128256",
    "model.max_positions=8192",
    "data.sequence_length=8192",
)
"""Blocks, vocabulary and sequence of Llama-3.1-8B; the number of layers is each setting's."""
GPT2 = (
    "model.family=gpt2",
    "model.hidden_size=768",
    "model.intermediate_size=3072",
    "model.layers=12",
    "model.heads=12",
    "model.kv_heads=12",
    "model.vocab_size=50257",
    "model.max_positions=1024",
    "model.tie_embeddings=true",
    "model.dropout=0.1",
    "data.sequence_length=1024",
)
"""The model of the profile gpt2-g5x2."""
PIECES, WHOLE = "training.loss_chunk_tokens=2048", "training.loss_chunk_tokens=null"
AGAIN = "training.activation_checkpointing="


@dataclass(frozen=True)
class Setting:
    """What is overridden; samples of each rank and pass; passes of a step."""

    sets: tuple[str, ...]
    samples: int = 1
    passes: int = 1

    def overrides(self, ranks: int) -> list[str]:
        """All of it, for a config."""
        batch = self.samples * self.passes * ranks
        return [*self.sets, f"training.micro_batch_size={self.samples}", f"training.global_batch_size={batch}"]


SETTINGS = {
    "none": Setting((*LLAMA_8B, "model.layers=8", f"{AGAIN}none", PIECES)),
    "selective": Setting((*LLAMA_8B, "model.layers=12", f"{AGAIN}selective", PIECES), samples=2),
    "full": Setting((*LLAMA_8B, "model.layers=16", f"{AGAIN}full", PIECES), samples=2),
    "whole-logits": Setting((*LLAMA_8B, "model.layers=4", f"{AGAIN}selective", WHOLE), samples=2),
    "accumulating": Setting((*LLAMA_8B, "model.layers=8", f"{AGAIN}selective", PIECES), passes=2),
    "8b": Setting((*LLAMA_8B, "model.layers=32", f"{AGAIN}selective", PIECES)),
    "masks": Setting((*LLAMA_8B, "model.layers=4", f"{AGAIN}none", PIECES, "data.document_masks=true")),
    "gpt2": Setting((*GPT2, f"{AGAIN}none", WHOLE), samples=16),
    "compiled": Setting((*LLAMA_8B, "model.layers=8", f"{AGAIN}none", PIECES, "training.compile=true")),
    "compiled-selective": Setting((*LLAMA_8B, "model.layers=12", f"{AGAIN}selective", PIECES, "training.compile=true")),
}
"""In the order in which they run: what matters most comes first."""
TINY = ("model.hidden_size=64", "model.intermediate_size=128", "model.layers=2", "data.sequence_length=64")
CPU_SETTINGS = {
    "none": Setting((*TINY, f"{AGAIN}none")),
    "masks": Setting(
        (*TINY, f"{AGAIN}selective", "training.loss_chunk_tokens=32", "data.document_masks=true"), passes=2
    ),
}
"""To try the bench out without a GPU: what a CPU's tensors take is not measured."""


@dataclass(frozen=True)
class Order:
    """What one start of the ranks is to do."""

    setting: str
    cuda: bool
    ranks: int = RANKS

    def to_json(self) -> str:
        """For the command line of a rank."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The other way round."""
        return cls(**json.loads(text))

    @property
    def config(self) -> RunConfig:
        """The config of the setting."""
        setting = settings(self.cuda)[self.setting]
        profile, key = ("gpu-local", "cluster.ranks_per_node") if self.cuda else ("cpu-test", "cluster.nodes")
        return load_profile(profile, [f"{key}={self.ranks}", *setting.overrides(self.ranks)])


def settings(cuda: bool) -> dict[str, Setting]:
    """Those of the machine."""
    return SETTINGS if cuda else CPU_SETTINGS
