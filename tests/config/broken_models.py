"""Sections `model` that are broken in one way each: at least one for every rule between their fields."""

from __future__ import annotations

from tests.config.broken_profiles import Case

OTHER = ("model.family=other", "model.config=/fsx/models/mine", "model.parameters=100000", "model.dropout=0")

MODEL_CASES = [
    Case("cpu-test", ("model.hidden_size=66",), ("model.hidden_size",), ("model.heads",)),
    Case("cpu-test", ("model.hidden_size=60",), ("model.hidden_size",), ("model.heads", "model.family")),
    Case("cpu-test", ("model.kv_heads=3",), ("model.kv_heads",), ("model.heads",)),
    Case("cpu-test", ("model.family=gpt2",), ("model.kv_heads",), ("model.family", "model.heads")),
    Case("cpu-test", ("model.weights=org/name",), ("model.weights",)),
    Case("llama3-8b-p5x2", ("model.weights=/models/mine",), ("model.weights",), ("storage.mount_path",)),
    Case("llama3-8b-p5x2", ("model.config=/fsx/../mine",), ("model.config",), ("storage.mount_path",)),
    Case("cpu-test", ("model.parameters=99999",), ("model.parameters",), ("model.family",)),
    Case("cpu-test", ("model.weights=/a", "model.parameters=9"), ("model.parameters",), ("model.vocab_size",)),
    Case(
        "cpu-test", ("model.settings={num_hidden_layers: 5}",), ("model.settings.num_hidden_layers",), ("model.layers",)
    ),
    Case("cpu-test", ("model.weights=./models/mine",), ("model.weights",)),
    Case("cpu-test", ("model.config=models",), ("model.config",)),
    Case("cpu-test", ("model.weights=/a", "model.config=/b"), ("model.config",), ("model.weights",)),
    Case("cpu-test", (*OTHER, "model.config=null"), ("model.family",), ("model.weights", "model.config")),
    Case("cpu-test", (*OTHER, "model.parameters=null"), ("model.parameters",), ("model.family",)),
    Case("cpu-test", (*OTHER, "model.dropout=0.1"), ("model.dropout",), ("model.family",)),
    Case("cpu-test", (*OTHER, "data.document_masks=true"), ("data.document_masks",), ("model.family",)),
    Case("cpu-test", (*OTHER, "training.loss_chunk_tokens=8"), ("training.loss_chunk_tokens",), ("model.family",)),
    Case("cpu-test", ("data.sequence_length=512",), ("data.sequence_length",), ("model.max_positions",)),
    Case("cpu-test", ("model.vocab_size=100",), ("model.vocab_size",), ("data.tokenizer",)),
]
