"""Read a committed step by its marker: in parallel, verified as it is read, straight into shards.

What was verified is what is used: every byte is read once, into memory, checked there and copied from there. Nothing is
unpickled before its checksum matched, and tensors are loaded with weights_only=True alone.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from holdfast.checkpoint_folder import DCP_METADATA, SAMPLE_EVERY, FileRecord, Marker, read_exactly
from trainer.checkpoint.read_memory import PIECE_BYTES, ReadMemory
from trainer.checkpoint.saved_tensor import SavedTensors

Verify = Literal["full", "sampled", "sizes"]
RUN_BYTES = PIECE_BYTES
"""Neighbouring tensors are read together up to this size, which is pinned: many requests in flight, each large."""
LOOK_UP_S = 0.2
"""A rank that waits for its readers looks up so often: an abort by NVRx reaches Python code only."""


class Damaged(Exception):
    """A committed checkpoint is not what was committed, or cannot be read. The message names the place."""


def committed_content(folder: Path, marker: Marker, name: str) -> bytes:
    """A small committed file, verified in full whatever the mode. Raises Damaged."""
    record = marker.file(name)
    if record is None:
        raise Damaged(f"{folder.name}/{name}: the marker does not list it")
    try:
        with open(folder / name, "rb", buffering=0) as stream:
            content = bytes(read_exactly(stream, record.bytes + 1))
    except OSError as error:
        raise Damaged(f"{folder.name}/{name}: {error.strerror}") from None
    if len(content) != record.bytes:
        raise Damaged(f"{folder.name}/{name}: {len(content)} bytes or more, {record.bytes} were committed")
    for block in range(len(record.xxh3)):
        start = block * marker.block_bytes
        if not record.check_block(block, content[start : start + marker.block_bytes]):
            raise Damaged(_differs(folder, name, block, start))
    return content


class VerifyingReader(dcp.FileSystemReader):
    """Reader for `dcp.load` of one committed step. Can be used for several loads.

    verify: `full` checks each block of which something is read, `sampled` each 16th one, `sizes` none. `.metadata` is
    always checked. threads: parallel readers. Loads raise Damaged (within a CheckpointException of DCP); the tensors
    are half-overwritten then.
    """

    def __init__(self, folder: Path, marker: Marker, verify: Verify = "full", threads: int = 4) -> None:
        super().__init__(folder)
        self._folder = folder
        self._marker = marker
        self._files = {file.name: file for file in marker.files}
        self._every = {"full": 1, "sampled": SAMPLE_EVERY, "sizes": None}[verify]
        self._threads = threads
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """DCP's description of the tensors, unpickled from bytes that were verified. Raises Damaged."""
        if args or kwargs.get("rank") is not None:
            # DCP asks for a rank's own metadata where it did not get the whole; no marker lists such a file.
            raise Damaged(f"{self._folder.name}: only {DCP_METADATA} describes the tensors")
        if self._metadata is None:
            content = committed_content(self._folder, self._marker, DCP_METADATA)
            self._metadata = pickle.loads(content)
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for into the tensors of the planner."""
        items = [self._item(request, planner) for request in plan.items]
        runs = [run for file, group in _by_file(items) for run in _runs(self._files[file], group, self._block_bytes)]
        _in_parallel(_Load(self._folder, self._block_bytes, self._every, runs).read, runs, self._threads)
        for item in items:
            planner.commit_tensor(item.request, item.target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def _block_bytes(self) -> int:
        return self._marker.block_bytes

    def _item(self, request: ReadItem, planner: LoadPlanner) -> _Item:
        place = self.storage_data[request.storage_index]
        name, start, end = place.relative_path, place.offset, place.offset + place.length
        where = f"{self._folder.name}/{name}: {request.dest_index.fqn} (bytes {start} to {end})"
        if name not in self._files or not 0 <= start < end <= self._files[name].bytes:
            raise Damaged(f"{where} is not in what was committed")
        if request.type == LoadItemType.BYTE_IO or place.transform_descriptors:
            raise Damaged(f"{where} is no plain tensor, and nothing else is loaded")
        return _Item(request, name, start, end, planner.resolve_tensor(request).detach(), where)


@dataclass(frozen=True)
class _Item:
    """One tensor to read: bytes start..end of a file, as torch.save wrote them, and where its values go."""

    request: ReadItem
    file: str
    start: int
    end: int
    target: torch.Tensor
    where: str

    def load(self, content: memoryview, saved: SavedTensors) -> None:
        """Copy the part that is asked for into the target."""
        try:
            whole = saved.tensor_in(content)
            tensor = narrow_tensor_by_index(whole, self.request.storage_offsets, self.request.lengths)
        except Exception as error:  # noqa: BLE001  whatever torch says of bytes that were not verified: damage
            raise Damaged(f"{self.where} cannot be read as a tensor: {error}") from None
        if tensor.size() != self.target.size():
            expected = tuple(self.target.size())
            raise Damaged(f"{self.where} has shape {tuple(tensor.size())}, its description says {expected}")
        with torch.no_grad():
            self.target.copy_(tensor)


@dataclass(frozen=True)
class _Run:
    """Tensors that lie together in a file, and the blocks first..last that hold them."""

    file: FileRecord
    first: int
    last: int
    items: tuple[_Item, ...]


def _by_file(items: Iterable[_Item]) -> Iterator[tuple[str, list[_Item]]]:
    in_order = sorted(items, key=lambda item: (item.file, item.start, item.end))
    return ((file, list(group)) for file, group in itertools.groupby(in_order, key=lambda item: item.file))


def _runs(file: FileRecord, items: list[_Item], block_bytes: int) -> Iterator[_Run]:
    """Cut a file's tensors, in order, into runs of neighbours; a tensor larger than RUN_BYTES is a run of its own."""
    run: _Run | None = None
    for item in items:
        first, last = item.start // block_bytes, (item.end - 1) // block_bytes
        if run and first <= run.last + 1 and item.end - run.first * block_bytes <= RUN_BYTES:
            run = _Run(file, run.first, max(run.last, last), (*run.items, item))
            continue
        if run:
            yield run
        run = _Run(file, first, last, (item,))
    if run:
        yield run


class _Seam:
    """A block that more than one run needs: whoever comes first reads it, the others copy. Kept until all have it."""

    def __init__(self, users: int) -> None:
        self._lock = threading.Lock()
        self._users = users
        self._content: bytes | None = None

    def give(self, target: memoryview, read: Callable[[memoryview], None]) -> None:
        """Fill `target` with the block; `read(target)` does it the first time."""
        with self._lock:
            self._users -= 1
            if self._content is not None:
                target[:] = self._content
            else:
                read(target)
                self._content = bytes(target)
            if not self._users:
                self._content = None


class _Load:
    """Reads runs, in any number of threads, each with memory of its own."""

    def __init__(self, folder: Path, block_bytes: int, every: int | None, runs: list[_Run]) -> None:
        self._folder = folder
        self._block_bytes = block_bytes
        self._every = every
        users = Counter((run.file.name, block) for run in runs for block in range(run.first, run.last + 1))
        self._seams = {place: _Seam(count) for place, count in users.items() if count > 1}
        self._memory = ReadMemory(pinned=any(item.target.is_cuda for run in runs for item in run.items))
        self._saved = SavedTensors()

    def read(self, run: _Run) -> None:
        """Read and verify the blocks of a run, then load its tensors. Raises Damaged."""
        start = run.first * self._block_bytes
        content = self._memory.take(min((run.last + 1) * self._block_bytes, run.file.bytes) - start)
        try:
            with open(self._folder / run.file.name, "rb", buffering=0) as stream:
                self._fill(run, stream.fileno(), content)
        except OSError as error:
            raise Damaged(f"{self._folder.name}/{run.file.name}: {error.strerror}") from None
        for item in run.items:
            item.load(content[item.start - start : item.end - start], self._saved)

    def _fill(self, run: _Run, descriptor: int, content: memoryview) -> None:
        def part(first: int, last: int) -> memoryview:
            begin = (first - run.first) * self._block_bytes
            return content[begin : begin + (last - first + 1) * self._block_bytes]

        blocks = range(run.first, run.last + 1)
        for shared, group in itertools.groupby(blocks, key=lambda block: (run.file.name, block) in self._seams):
            stretch = list(group)
            if not shared:
                self._read_blocks(run.file, descriptor, stretch[0], part(stretch[0], stretch[-1]))
            for block in stretch if shared else []:
                read = partial(self._read_blocks, run.file, descriptor, block)
                self._seams[run.file.name, block].give(part(block, block), read)

    def _read_blocks(self, file: FileRecord, descriptor: int, first: int, target: memoryview) -> None:
        """Read whole blocks from `first` on until `target` is full, and verify those that the mode wants verified."""
        place = first * self._block_bytes
        filled = 0
        while filled < len(target):
            count = os.preadv(descriptor, [target[filled:]], place + filled)
            if count == 0:
                ends = f"ends at byte {place + filled}, {file.bytes} were committed"
                raise Damaged(f"{self._folder.name}/{file.name}: block {(place + filled) // self._block_bytes}: {ends}")
            filled += count
        for block in range(first, first + -(-len(target) // self._block_bytes)):
            due = self._every is not None and (block % self._every == 0 or block == len(file.xxh3) - 1)
            begin = block * self._block_bytes - place
            if due and not file.check_block(block, target[begin : begin + self._block_bytes]):
                raise Damaged(_differs(self._folder, file.name, block, block * self._block_bytes))


def _in_parallel(function: Callable[[_Run], None], runs: list[_Run], threads: int) -> None:
    """Call the function for every run. After an error nothing runs on: what follows writes to the same tensors."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="restore")
    try:
        waiting = {pool.submit(function, run) for run in runs}
        while waiting:
            done, waiting = wait(waiting, timeout=LOOK_UP_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
    except Exception:  # damage, storage, no memory: any of them; an abort is none and waits for nobody
        # It goes on to the caller, who then loads another step into the same tensors: the other readers must have let
        # go of them first.
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        # Aborted from outside, the attempt is over and its tensors are nobody's: a reader stuck in the file system must
        # not hold the restart up.
        pool.shutdown(wait=False, cancel_futures=True)


def _differs(folder: Path, name: str, block: int, start: int) -> str:
    return f"{folder.name}/{name}: block {block} (from byte {start}) has another checksum than was committed"
