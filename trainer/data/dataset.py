"""What the training loop holds: the memory-mapped tokens, and which of them make the batch of a step."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from holdfast.config import ConfigError, Problem, RunConfig
from trainer.data import order, shard, sources, tokenizer

if TYPE_CHECKING:
    import torch

_FORMAT = 1
"""Raise it when the same text and tokenizer would give another token file."""


class Dataset:
    """Samples of `sequence_length` + 1 tokens; neighbours share one token, so that every token is predicted once.

    fingerprint: changes when text, tokenizer or limit change, and with nothing else. samples: their number.
    """

    def __init__(self, config: RunConfig, tokens: shard.Shard) -> None:
        self.fingerprint = tokens.fingerprint
        self.tokens = tokens.tokens
        self.samples = max(0, tokens.tokens - 1) // config.data.sequence_length
        self._config = config
        self._check(tokens.vocabulary)
        self._mapped = tokens.read()

    def sample_ids(self, step: int) -> order.Ids:
        """Samples of the global batch of `step` (which counts from 1), in order, shape [global_batch_size]."""
        return self._ids(step, 0, self._config.training.global_batch_size)

    def batch(self, step: int, rank: int, world_size: int, *, micro: int = 0) -> torch.Tensor:
        """Tokens of one forward pass of one rank: int64, shape [micro_batch_size, sequence_length + 1], on the CPU.

        The global batch is cut in order: by rank, then by `micro` (0 .. accumulation - 1). Raises ConfigError if it
        cannot be cut evenly for this world size.
        """
        import torch

        length = self._config.data.sequence_length
        ids = self._ids(step, *self._part(rank, world_size, micro))
        rows = [self._mapped[start : start + length + 1] for start in (ids * length).tolist()]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _ids(self, step: int, start: int, count: int) -> order.Ids:
        if step < 1:
            raise ValueError(f"step {step}: steps count from 1")
        first = (step - 1) * self._config.training.global_batch_size + start
        return order.sample_ids(self._config.seed, self.samples, first, count)

    def _part(self, rank: int, world_size: int, micro: int) -> tuple[int, int]:
        """Where in the global batch the micro-batch begins, and its size."""
        total, size = self._config.training.global_batch_size, self._config.training.micro_batch_size
        per_pass = world_size * size
        if total % per_pass:
            why = f"{world_size} ranks x training.micro_batch_size={size} must divide it"
            problem = Problem("training.global_batch_size", total, why, f"use a multiple of {per_pass}")
            raise ConfigError([problem], "data")
        passes = total // per_pass
        if not (0 <= rank < world_size and 0 <= micro < passes):
            raise ValueError(f"rank {rank} of {world_size}, micro-batch {micro} of {passes}: no such part of the batch")
        return (rank * passes + micro) * size, size

    def _check(self, vocabulary: int) -> None:
        config = self._config
        length, batch = config.data.sequence_length, config.training.global_batch_size
        problems = _vocabulary_problems(config, vocabulary)
        if self.samples < batch:
            why = (
                f"its {self.tokens} tokens make {self.samples} samples of data.sequence_length={length}, "
                f"fewer than training.global_batch_size={batch}"
            )
            fix = "give more text, raise data.limit_mib, or lower training.global_batch_size"
            problems.append(Problem("data.path", list(config.data.path), why, fix))
        if problems:
            raise ConfigError(problems, "data")


def open_dataset(config: RunConfig, storage: Path, cache: Path) -> Dataset:
    """The data set of a run. Tokenizes on first use and keeps the result in `cache`, which many processes may share.

    storage: where relative paths of data.path start. A later call for unchanged files reads no text: which fingerprint
    belongs to files of these sizes, times and inodes is remembered. Raises ConfigError if the data cannot be used
    (path, tokenizer, vocabulary, too little text), OSError if the disk fails.
    """
    found = sources.find(config.data, storage)
    note = cache / f"{_listing_key(config, found)}.known"
    known = _remembered(note)
    ready = shard.find(cache, known) if known else None
    if ready is None:
        ready = _tokenize(config, storage, cache, found)
        _remember(note, ready.fingerprint)
    return Dataset(config, ready)


def _tokenize(config: RunConfig, storage: Path, cache: Path, found: Sequence[sources.Source]) -> shard.Shard:
    encoder = tokenizer.load(config.data.tokenizer, storage)
    problems = _vocabulary_problems(config, encoder.vocabulary)
    if problems:
        raise ConfigError(problems, "data")
    digests = [source.digest() for source in found]
    content = [_FORMAT, encoder.identity, sources.limit_bytes(config.data), digests]
    fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    # Half of the init section, so that a rank that waits in vain still has time to do the work itself.
    wait_s = config.recovery.init_section_timeout_s / 2
    return shard.make(cache, fingerprint, encoder, found, digests, wait_s)


def _vocabulary_problems(config: RunConfig, vocabulary: int) -> list[Problem]:
    if vocabulary <= config.model.vocab_size:
        return []
    why = f"data.tokenizer={config.data.tokenizer!r} has token ids up to {vocabulary - 1}"
    return [Problem("model.vocab_size", config.model.vocab_size, why, f"use at least {vocabulary}")]


def _listing_key(config: RunConfig, found: Sequence[sources.Source]) -> str:
    listing = [_FORMAT, config.data.tokenizer, sources.limit_bytes(config.data)]
    listing += [(str(source.path), source.used, source.stamp) for source in found]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]


def _remembered(note: Path) -> str | None:
    try:
        return note.read_text().strip() or None
    except FileNotFoundError:
        return None


def _remember(note: Path, fingerprint: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=note.parent, prefix=f".{note.name}.", delete=False) as own:
        own.write(fingerprint)
    os.chmod(own.name, 0o644)
    os.replace(own.name, note)
