"""What the training loop holds: the memory-mapped tokens, and which of them make the batch of a step."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from holdfast.config import ConfigError, Problem, RunConfig
from trainer.data.documents import positions_of
from trainer.data.mixture import Mixture
from trainer.data.order import Ids, samples_at, shuffled
from trainer.data.tokens import Stream
from trainer.seeds import derive

if TYPE_CHECKING:
    import torch

_FIXED = 0
"""Seed of the order of held-out samples: runs of different seeds are compared on the same ones."""


@dataclass(frozen=True)
class Part:
    """One stream of tokens. key, entries: where the config names it. vocabulary: every id is below it. tokenizer: its
    identity."""

    key: str
    entries: list[str]
    fingerprint: str
    vocabulary: int
    tokenizer: str
    stream: Stream


class Dataset:
    """Samples of `sequence_length` + 1 tokens; neighbours share one token, so that every token is predicted once.

    fingerprint: changes when text, tokenizer, limit, shares or what is held out change, and with nothing else.
    samples: those that are trained on. A sample's id counts through all parts; the held-out ones of a part follow the
    others of that part.
    """

    def __init__(self, config: RunConfig, parts: Sequence[Part], validation: Part | None = None) -> None:
        self._config = config
        self._parts = list(parts)
        weights = [part.weight for part in config.data.mixture] or [1.0]
        self._mixture = Mixture.of(weights)
        counts = [self._count(part) for part in parts]
        self._held = [math.ceil(count * config.data.validation_fraction) for count in counts]
        self._trained = [count - held for count, held in zip(counts, self._held, strict=True)]
        self._offsets = np.cumsum([0, *counts], dtype=np.int64)
        self._validation = validation
        self.tokens = sum(part.stream.tokens for part in parts)
        self.samples = sum(self._trained)
        self.fingerprint = self._fingerprint()
        self._check()

    def sample_ids(self, step: int) -> Ids:
        """Samples of the global batch of `step` (which counts from 1), in order, shape [global_batch_size]."""
        return self._ids(step, 0, self._config.training.global_batch_size)

    def batch(self, step: int, rank: int, world_size: int, *, micro: int = 0) -> torch.Tensor:
        """Tokens of one forward pass of one rank: int64, shape [micro_batch_size, sequence_length + 1], on the CPU.

        The global batch is cut in order: by rank, then by `micro` (0 .. accumulation - 1). Raises ConfigError if it
        cannot be cut evenly for this world size.
        """
        return _stacked([self._tokens_of(*self._locate(one)) for one in self._share(step, rank, world_size, micro)])

    def positions(self, step: int, rank: int, world_size: int, *, micro: int = 0) -> torch.Tensor | None:
        """Of the same forward pass, the position of each input token within its document: int64, shape
        [micro_batch_size, sequence_length] (trainer/data/documents.py). None unless data.document_masks is set."""
        if not self._config.data.document_masks:
            return None
        return _stacked([self._positions_of(*self._locate(one)) for one in self._share(step, rank, world_size, micro)])

    def validation_batches(self, rank: int, world_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """(tokens, positions) of each forward pass of one rank over the held-out samples, as `batch` and `positions`
        give them. All ranks have equally many, and together the same samples at any world size and every time."""
        size = self._config.training.global_batch_size
        for first in range(0, self.evaluation_samples, size):
            for micro in range(self._passes(world_size)):
                start, count = self._part_of_batch(rank, world_size, micro)
                places = np.arange(first + start, first + start + count, dtype=np.int64)
                found = self._held_out(places)
                tokens = _stacked([self._tokens_of(*one) for one in found])
                masks = self._config.data.document_masks
                yield tokens, _stacked([self._positions_of(*one) for one in found]) if masks else None

    @property
    def evaluation_samples(self) -> int:
        """Held-out samples that an evaluation takes: whole global batches."""
        size = self._config.training.global_batch_size
        return min(max(self._config.training.evaluation_samples, size), self._available()) // size * size

    def epochs(self, step: int) -> list[float]:
        """Of each part, how often its samples were used by the end of `step`. For people."""
        places = step * self._config.training.global_batch_size
        return [
            places * share / sum(self._mixture.slots) / trained
            for share, trained in zip(self._mixture.slots, self._trained, strict=True)
        ]

    def _count(self, part: Part) -> int:
        return max(0, part.stream.tokens - 1) // self._config.data.sequence_length

    def _fingerprint(self) -> str:
        if len(self._parts) == 1 and not self._held[0]:
            return self._parts[0].fingerprint
        content = [[part.fingerprint for part in self._parts], self._mixture.slots, self._held]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def _share(self, step: int, rank: int, world_size: int, micro: int) -> list[int]:
        ids: list[int] = self._ids(step, *self._part_of_batch(rank, world_size, micro)).tolist()
        return ids

    def _ids(self, step: int, start: int, count: int) -> Ids:
        if step < 1:
            raise ValueError(f"step {step}: steps count from 1")
        first = (step - 1) * self._config.training.global_batch_size + start
        parts, numbers = self._mixture.place(np.arange(first, first + count, dtype=np.int64), self._config.seed)
        ids = np.empty(count, dtype=np.int64)
        for part in np.unique(parts).tolist():
            here = parts == part
            found = samples_at(self._seed_of(part), self._trained[part], numbers[here])
            ids[here] = self._offsets[part] + found
        return ids

    def _seed_of(self, part: int) -> int:
        seed = self._config.seed
        return seed if len(self._parts) == 1 else derive(seed, "part", part)

    def _locate(self, sample: int) -> tuple[Stream, int]:
        """The stream that a sample is in, and its number there."""
        part = int(np.searchsorted(self._offsets, sample, side="right")) - 1
        return self._parts[part].stream, sample - int(self._offsets[part])

    def _held_out(self, places: Ids) -> list[tuple[Stream, int]]:
        if self._validation is not None:
            ids = shuffled(places, self._count(self._validation), _FIXED, 0)
            return [(self._validation.stream, number) for number in ids.tolist()]
        found = []
        parts, numbers = self._mixture.place(places, _FIXED)
        for part, number in zip(parts.tolist(), numbers.tolist(), strict=True):
            held = self._held[part]
            (chosen,) = shuffled(np.asarray([number % held]), held, _FIXED, 0).tolist()
            found.append((self._parts[part].stream, self._trained[part] + chosen))
        return found

    def _available(self) -> int:
        return sum(self._held) if self._validation is None else self._count(self._validation)

    def _tokens_of(self, stream: Stream, number: int) -> Ids:
        length = self._config.data.sequence_length
        return stream.read(number * length, (number + 1) * length + 1).astype(np.int64)

    def _positions_of(self, stream: Stream, number: int) -> Ids:
        length = self._config.data.sequence_length
        start = number * length
        return positions_of(length, stream.ends(start, start + length) - start)

    def _passes(self, world_size: int) -> int:
        """Forward passes per rank and global batch."""
        total, size = self._config.training.global_batch_size, self._config.training.micro_batch_size
        per_pass = world_size * size
        if total % per_pass:
            why = f"{world_size} ranks x training.micro_batch_size={size} must divide it"
            problem = Problem("training.global_batch_size", total, why, f"use a multiple of {per_pass}")
            raise ConfigError([problem], "data")
        return total // per_pass

    def _part_of_batch(self, rank: int, world_size: int, micro: int) -> tuple[int, int]:
        """Where in the global batch the micro-batch begins, and its size."""
        passes, size = self._passes(world_size), self._config.training.micro_batch_size
        if not (0 <= rank < world_size and 0 <= micro < passes):
            raise ValueError(f"rank {rank} of {world_size}, micro-batch {micro} of {passes}: no such part of the batch")
        return (rank * passes + micro) * size, size

    def _check(self) -> None:
        problems = [problem for number in range(len(self._parts)) for problem in self._size_problems(number)]
        available, batch = self._available(), self._config.training.global_batch_size
        if self._config.training.evaluate_every_steps is not None and available < batch:
            data = self._config.data
            key, got = ("data.validation_fraction", str(data.validation_fraction))
            if data.validation_path:
                key, got = "data.validation_path", str(list(data.validation_path))
            why = f"it holds out {available} samples, fewer than training.global_batch_size={batch}"
            problems.append(Problem(key, got, why, "hold out more, or use training.evaluate_every_steps: null"))
        if problems:
            raise ConfigError(problems, "data")

    def _size_problems(self, number: int) -> Iterator[Problem]:
        part, length = self._parts[number], self._config.data.sequence_length
        # A part of a mixture may be small: it begins its next epoch within a batch.
        least = self._config.training.global_batch_size if len(self._parts) == 1 else 1
        if self._trained[number] >= least:
            return
        wanted = "at least one is needed" if least == 1 else f"fewer than training.global_batch_size={least}"
        held = f", {self._held[number]} of them held out" if self._held[number] else ""
        why = (
            f"its {part.stream.tokens} tokens make {self._trained[number] + self._held[number]} samples of "
            f"data.sequence_length={length}{held}, {wanted}"
        )
        fix = "give more text, raise data.limit_mib, or lower training.global_batch_size"
        yield Problem(part.key, part.entries, why, fix)


def _stacked(rows: Sequence[Ids]) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.stack(rows))
