"""Byte counts that follow from a model, as plain formulas. Compared with transformers' own modules in tests."""

from __future__ import annotations

from holdfast.config import names
from holdfast.config.schema import Model, RunConfig, Storage

MASTER_BYTES = 4
"""float32 master weight."""
ADAM_BYTES = 8
"""Two float32 moments."""
SCRATCH_2_MBPS_PER_TIB = 200
"""Fixed by FSx for the deployment type SCRATCH_2."""
GIB = 2**30


def parameters(model: Model) -> int:
    """Number of parameters of the model, tied embeddings counted once: as the config says, else by a formula.

    The trainer compares it with the real modules where a config.json describes them.
    """
    if model.parameters is not None:
        return model.parameters
    return _gpt2(model) if model.family == "gpt2" else _llama_like(model)


def outside_of_blocks(m: Model) -> int:
    """Parameters of embeddings, output layer and last norm, for the families that there are formulas for."""
    positions, norms = (m.max_positions, 2) if m.family == "gpt2" else (0, 1)
    tables = m.vocab_size * (1 if m.tie_embeddings else 2) + positions
    return (tables + norms) * m.hidden_size


def _llama_like(m: Model) -> int:
    head = m.hidden_size // m.heads
    kv = m.kv_heads * head
    attention = m.hidden_size * (2 * m.hidden_size + 2 * kv)
    if m.family == "qwen2":
        attention += m.hidden_size + 2 * kv  # biases of q, k, v
    mlp = 3 * m.hidden_size * m.intermediate_size
    block = attention + mlp + 2 * m.hidden_size
    return m.layers * block + outside_of_blocks(m)


def _gpt2(m: Model) -> int:
    attention = m.hidden_size * 3 * m.hidden_size + 3 * m.hidden_size + m.hidden_size * m.hidden_size + m.hidden_size
    mlp = 2 * m.hidden_size * m.intermediate_size + m.intermediate_size + m.hidden_size
    block = attention + mlp + 4 * m.hidden_size
    return m.layers * block + outside_of_blocks(m)


def checkpoint_bytes(config: RunConfig) -> int:
    """Bytes of one checkpoint over all ranks: float32 weights and two float32 Adam moments."""
    return parameters(config.model) * (MASTER_BYTES + ADAM_BYTES)


def part_bytes_per_node(config: RunConfig) -> int:
    """What the ranks of one node have of one checkpoint, at the smallest size of the job: then it is the most."""
    return -(-checkpoint_bytes(config) // config.min_nodes)


def staging_bytes_per_node(config: RunConfig) -> int:
    """Host memory that staged copies take on one node: its part of one checkpoint, for each tier."""
    return part_bytes_per_node(config) * (2 if has_local_tier(config) else 1)


def has_local_tier(config: RunConfig) -> bool:
    """Whether checkpoints are also kept on the nodes themselves."""
    return config.checkpoint.local.interval_steps is not None and config.checkpoint.mode == "async"


def local_tier_in_memory(config: RunConfig) -> bool:
    """Whether the local tier lies in the pod's shared memory rather than on the node's disk."""
    return config.checkpoint.local.path.startswith(f"{names.SHM_MOUNT}/")


def local_saves(config: RunConfig) -> int:
    """Local saves on a node at the worst moment: those kept, and one being written."""
    return config.checkpoint.local.keep_last + 1


def local_tier_bytes_per_node(config: RunConfig) -> int:
    """What the local tier takes of a node's disk or memory: own parts, and copies of the neighbour's."""
    if not has_local_tier(config):
        return 0
    copies = 2 if config.checkpoint.local.replicate and config.cluster.nodes > 1 else 1
    return part_bytes_per_node(config) * copies * local_saves(config)


def shared_memory_bytes_per_node(config: RunConfig) -> int:
    """What checkpoints take of a node's /dev/shm: staged copies, and the local tier if it lies there."""
    kept = local_tier_bytes_per_node(config) if local_tier_in_memory(config) else 0
    return staging_bytes_per_node(config) + kept


def kept_checkpoints(config: RunConfig) -> int:
    """Checkpoints on storage at the worst moment: the newest ones, those kept for ever, and one being written."""
    every = config.checkpoint.keep_every_steps
    return config.checkpoint.keep_last + 1 + (config.training.steps // every if every else 0)


def lustre_bytes_per_s(capacity_gib: int, mbps_per_tib: int | None) -> float:
    """Throughput that FSx for Lustre promises for a size; None stands for SCRATCH_2. Its megabyte is 10^6 bytes."""
    return capacity_gib / 1024 * (mbps_per_tib or SCRATCH_2_MBPS_PER_TIB) * 1e6


def storage_bytes_per_s(storage: Storage) -> float:
    """Throughput that FSx for Lustre promises for the configured file system."""
    return lustre_bytes_per_s(storage.capacity_gib, storage.throughput_mbps_per_tib)
