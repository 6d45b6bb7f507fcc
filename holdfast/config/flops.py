"""Arithmetic of training, and what a node type's GPUs can do at most: together they are the MFU. Plain formulas."""

from __future__ import annotations

from holdfast.config.schema import Model, RunConfig
from holdfast.config.sizing import parameters

PEAK_BF16_TFLOPS = {
    "p5.48xlarge": 989.4, "p5e.48xlarge": 989.4, "p5en.48xlarge": 989.4,  # H100 and H200 SXM
    "p4d.24xlarge": 312.0, "p4de.24xlarge": 312.0,  # A100
    "g6e.12xlarge": 362.05,  # L40S
    "g6.8xlarge": 121.0,  # L4
    "g5.8xlarge": 70.0,  # A10G
}  # fmt: skip
"""10^12 dense bfloat16 operations per second of one GPU, without sparsity, from NVIDIA's data sheets."""


def flops_per_token(model: Model, sequence_length: int) -> float:
    """Operations of forward and backward per token: 6 per parameter that multiplies, and 12 x layers x width x
    sequence for attention. What is computed again to save memory does not count, so this is MFU and not HFU.

    A table that is only looked up in multiplies nothing: the input embedding, unless it is the output layer too, and
    GPT-2's positions.
    """
    looked_up = 0 if model.tie_embeddings else model.vocab_size
    if model.family == "gpt2":
        looked_up += model.max_positions
    multiplying = parameters(model) - looked_up * model.hidden_size
    return 6.0 * multiplying + 12.0 * model.layers * model.hidden_size * sequence_length


def peak_flops_per_s(config: RunConfig) -> float | None:
    """Peak of one rank's GPU in the type that the model computes in; None where it is not known.

    Only bfloat16 is known: float32 models run on TF32 or plain float32 units, as torch is told.
    """
    if config.device != "cuda" or config.model.dtype != "bfloat16":
        return None
    peak = PEAK_BF16_TFLOPS.get(config.cluster.instance_type)
    return None if peak is None else peak * 1e12
