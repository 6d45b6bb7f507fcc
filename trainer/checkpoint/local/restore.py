"""Restore from the local tier: agree on a save, read own parts, fetch the others from ranks whose nodes have them.

Everything here is collective over the default process group, on its gloo side, and so bounded by its timeout.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import lineage
from holdfast.checkpoint_folder import BlockHashes
from holdfast.config import RunConfig, names
from holdfast.run_directory import RunDirectory
from trainer.checkpoint.local.files import (
    Damaged,
    PartReader,
    Stored,
    list_parts,
    node_id,
    read_part,
    remove_newer,
)
from trainer.checkpoint.local.find import Candidate, Copy, Flaw, Seen, plan
from trainer.checkpoint.local.flat import FlatBytes
from trainer.checkpoint.local.part import Part

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 26
"""Largest message between two ranks."""


def folder_of(config: RunConfig) -> Path:
    """The run's folder on this node. The local runner puts the node's volume elsewhere and says so by a variable."""
    return Path(os.environ.get(names.ENV_NODE_VOLUME, config.checkpoint.local.path)) / config.name


class LocalTier:
    """The local tier at the start of one attempt. `find`, then `load` until it works or nothing is found."""

    def __init__(self, folder: Path, run: RunDirectory, rank: int, world_size: int, read_threads: int) -> None:
        """folder: this node's (`folder_of`)."""
        self.passed_over: list[str] = []
        """Why saves were not restored, one message each, the same on all ranks."""
        self._folder = folder
        self._run = run
        self._rank = rank
        self._world_size = world_size
        self._threads = read_threads
        self._seen: list[Seen] | None = None
        self._begun: list[lineage.Begun] = []
        self._stored: dict[Copy, Stored] = {}
        self._flaws: set[Flaw] = set()

    def find(self, layout_hash: str, above: int = -1) -> Candidate | None:
        """The newest local save of a step beyond `above` that every rank can get back, or None. Collective.

        layout_hash: of this rank's segments, and of whatever else must be as it was (part.layout_hash).
        """
        if self._seen is None:
            self._gather(layout_hash)
        assert self._seen is not None
        candidate, messages = plan(self._seen, self._begun, self._flaws, above)
        self.passed_over += [message for message in messages if message not in self.passed_over]
        return candidate

    def load(self, candidate: Candidate, segments: Sequence[torch.Tensor]) -> int | None:
        """Fill `segments` with this rank's part; returns its bytes. Collective.

        None, on all ranks alike, if a copy turned out damaged: it is not planned with again, so that the next `find`
        returns the same save from other copies or an older one. `segments` then hold anything.
        """
        flat = FlatBytes(segments)
        problems: list[tuple[Flaw, str]] = []
        with ThreadPoolExecutor(1) as aside:
            own = aside.submit(self._read_own, candidate, flat) if candidate.sources[self._rank] == self._rank else None
            for source, receiver in candidate.transfers:
                if self._rank == source:
                    problems += self._send(candidate, receiver)
                elif self._rank == receiver:
                    problems += self._receive(candidate, source, flat)
            problems += own.result() if own is not None else []
        everywhere: list[list[tuple[Flaw, str]]] = [[] for _ in range(self._world_size)]
        dist.all_gather_object(everywhere, problems)
        found = [problem for rank_problems in everywhere for problem in rank_problems]
        self._flaws |= {flaw for flaw, _ in found}
        self.passed_over += [f"{flaw.save.folder}: rank {flaw.rank}: {why}" for flaw, why in found]
        return None if found else flat.bytes

    def leave_newer_behind(self, step: int) -> None:
        """Remove what lies on this node beyond `step`, from which training goes on. Raises nothing."""
        try:
            for name in remove_newer(self._folder, step):
                logger.warning("local save %s was removed: training goes on from step %d", name, step)
        except OSError as error:
            logger.warning("local saves beyond step %d could not be removed: %s", step, error)

    # --- what is where ---

    def _gather(self, layout_hash: str) -> None:
        """The attempts come from rank 0 alone: a file that is read twice may say two things. Where it cannot be read,
        OSError is raised on all ranks: the others would wait until the process group's timeout."""
        begun, why = self._attempts() if self._rank == 0 else ([], None)
        mine = (self._look(layout_hash), begun, why)
        everyone: list[tuple[Seen, list[lineage.Begun], str | None]] = [mine] * self._world_size
        dist.all_gather_object(everyone, mine)
        _, self._begun, why = everyone[0]
        if why is not None:
            raise OSError(why)
        self._seen = [seen for seen, _, _ in everyone]

    def _attempts(self) -> tuple[list[lineage.Begun], str | None]:
        """The attempts of the run, or why they cannot be read."""
        try:
            return lineage.read(self._run), None
        except OSError as error:
            return [], str(error)

    def _look(self, layout_hash: str) -> Seen:
        try:
            node = node_id(self._folder)
            self._stored = {Copy.of(stored.part): stored for stored in list_parts(self._folder)}
        except OSError as error:
            logger.warning("the local tier of this node cannot be read: %s", error)
            return Seen("", layout_hash, ())
        return Seen(node, layout_hash, tuple(self._stored))

    def _copy(self, candidate: Candidate, rank: int) -> Stored | None:
        """Where rank `rank`'s part lies on this node."""
        places = (stored for copy, stored in self._stored.items() if (copy.save, copy.rank) == (candidate.save, rank))
        return next(places, None)

    def _flaw(self, candidate: Candidate, holder: int, rank: int, why: object) -> list[tuple[Flaw, str]]:
        assert self._seen is not None
        return [(Flaw(self._seen[holder].node, candidate.save, rank), f"on rank {holder}'s node: {why}")]

    # --- bytes ---

    def _read_own(self, candidate: Candidate, flat: FlatBytes) -> list[tuple[Flaw, str]]:
        stored = self._copy(candidate, self._rank)
        assert stored is not None, "planned with what was listed"
        try:
            read_part(stored, flat, self._threads)
        except (OSError, Damaged) as error:
            return self._flaw(candidate, self._rank, self._rank, error)
        return []

    def _send(self, candidate: Candidate, receiver: int) -> list[tuple[Flaw, str]]:
        """Send rank `receiver`'s part to it: its record, then chunks, each announced by a 1; a 0 gives up."""
        stored = self._copy(candidate, receiver)
        assert stored is not None, "planned with what was listed"
        record = torch.frombuffer(bytearray(json.dumps(stored.part.record()).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([record.numel()]), receiver)
        dist.send(record, receiver)
        try:
            self._send_chunks(stored, receiver)
        except (OSError, Damaged) as error:
            dist.send(torch.tensor([0]), receiver)
            return self._flaw(candidate, self._rank, receiver, error)
        return []

    def _send_chunks(self, stored: Stored, receiver: int) -> None:
        """The next chunk is read while one is sent."""
        size, total = _chunk_bytes(stored.part), stored.part.bytes
        if not total:
            return
        buffers = [torch.empty(min(size, total), dtype=torch.uint8) for _ in range(2)]
        with PartReader(stored, self._threads) as reader, ThreadPoolExecutor(1) as ahead:

            def read(index: int) -> torch.Tensor:
                buffer = buffers[index % 2][: min(size, total - index * size)]
                reader.read(index * size, FlatBytes([buffer]))
                return buffer

            count = -(-total // size)
            coming: Future[torch.Tensor] | None = ahead.submit(read, 0) if count else None
            for index in range(count):
                assert coming is not None
                chunk = coming.result()
                coming = ahead.submit(read, index + 1) if index + 1 < count else None
                dist.send(torch.tensor([1]), receiver)
                dist.send(chunk, receiver)

    def _receive(self, candidate: Candidate, source: int, flat: FlatBytes) -> list[tuple[Flaw, str]]:
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, source)
        record = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(record, source)
        part = Part.from_record(json.loads(record.numpy().tobytes()))
        if part is None or (part.save, part.rank, part.bytes) != (candidate.save, self._rank, flat.bytes):
            raise RuntimeError(f"rank {source} sent {part and part.bytes} bytes where {flat.bytes} were asked for")
        hashes = BlockHashes(part.block_bytes)
        size = _chunk_bytes(part)
        for offset in range(0, part.bytes, size):
            go = torch.zeros(1, dtype=torch.int64)
            dist.recv(go, source)
            if not int(go):
                return []  # the sender says why
            _receive_chunk(flat, offset, min(size, part.bytes - offset), source, hashes)
        if hashes.digests() != part.xxh3:
            return self._flaw(candidate, source, self._rank, "it was changed on its way here")
        return []


def _chunk_bytes(part: Part) -> int:
    """Whole blocks."""
    return max(CHUNK_BYTES // part.block_bytes, 1) * part.block_bytes


def _receive_chunk(flat: FlatBytes, offset: int, count: int, source: int, hashes: BlockHashes) -> None:
    """Straight into the segment; by way of a buffer where the chunk lies across two."""
    pieces = flat.tensors(offset, count)
    if len(pieces) == 1:
        dist.recv(pieces[0], source)
    else:
        buffer = torch.empty(count, dtype=torch.uint8)
        dist.recv(buffer, source)
        for piece, part in zip(pieces, buffer.split([piece.numel() for piece in pieces]), strict=True):
            piece.copy_(part)
    for piece in pieces:
        hashes.update(piece.numpy().data)
