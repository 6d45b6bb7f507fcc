"""The verifying reader: the same values as stock DCP, each block checked once, nothing damaged or foreign let in."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.checkpoint_folder import FileRecord
from tests.trainer.committed import Evil, blank, commit, flip, load, marker_of, some_tensors, two_steps, with_reader
from tests.trainer.saves import same
from trainer.checkpoint import reader
from trainer.checkpoint.compare import read_whole
from trainer.checkpoint.reader import Damaged, Verify, VerifyingReader

BLOCK = 4096
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # so it is: one process loads


@pytest.fixture(autouse=True)
def many_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that runs meet within blocks, as they do in files of many GB."""
    monkeypatch.setattr(reader, "RUN_BYTES", 5 * BLOCK)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_steps(tmp_path_factory.mktemp("checkpoints"), BLOCK)


@pytest.fixture
def step(saved: Path, tmp_path: Path) -> Path:
    """Step 20 of a copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoints")) / "step-00000020"


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("verify", ["full", "sampled", "sizes"])
def test_what_is_read_is_what_stock_dcp_reads_and_what_was_saved(step: Path, verify: Verify, threads: int) -> None:
    ours, stock = blank(some_tensors(20)), blank(some_tensors(20))
    load(step, ours, verify, threads)
    dcp.load(stock, storage_reader=dcp.FileSystemReader(step), no_dist=True)
    assert same(ours, stock)
    assert same(ours, some_tensors(20))


def test_an_empty_tensor_is_no_difficulty(tmp_path: Path) -> None:
    into = {"empty": torch.empty(0, 4), "one": torch.zeros(1)}
    commit(tmp_path / "step-00000001", {"empty": torch.empty(0, 4), "one": torch.ones(1)}, BLOCK)
    load(tmp_path / "step-00000001", into)
    assert into["one"].item() == 1


def test_one_reader_serves_several_loads(step: Path) -> None:
    source, wanted = VerifyingReader(step, marker_of(step)), some_tensors(20)
    for name in ("large", "scalar", "small.7"):
        into = blank({name: wanted[name]})
        with_reader(source, into)
        assert same(into, {name: wanted[name]})


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Counts the verifications of each block of a data file."""
    counter: Counter[tuple[str, int]] = Counter()
    lock, really = threading.Lock(), FileRecord.check_block

    def counting(self: FileRecord, index: int, data: Any) -> bool:
        with lock:
            counter[self.name, index] += self.name.endswith(".distcp")
        return really(self, index, data)

    monkeypatch.setattr(FileRecord, "check_block", counting)
    return counter


def blocks(folder: Path, due: Callable[[int, int], bool]) -> set[tuple[str, int]]:
    """Blocks of data files for which due(index, number of blocks) holds."""
    data = [file for file in marker_of(folder).files if file.name.endswith(".distcp")]
    return {(f.name, index) for f in data for index in range(len(f.xxh3)) if due(index, len(f.xxh3))}


def test_every_block_is_verified_exactly_once(step: Path, checked: Counter[tuple[str, int]]) -> None:
    load(step, blank(some_tensors(20)))
    assert set(+checked) == blocks(step, lambda index, count: True)
    assert set((+checked).values()) == {1}
    assert len(+checked) > 150


def test_no_byte_is_read_twice(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, really = [], os.preadv

    def counting(descriptor: int, buffers: Any, offset: int, /) -> int:
        read.append(really(descriptor, buffers, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counting)
    load(step, blank(some_tensors(20)))
    assert sum(read) == sum(file.bytes for file in marker_of(step).files if file.name.endswith(".distcp"))


def test_only_blocks_of_what_is_asked_for_are_read(step: Path, checked: Counter[tuple[str, int]]) -> None:
    into = blank({"large": some_tensors(20)["large"]})
    load(step, into)
    size = into["large"].nbytes // BLOCK
    assert size <= len(+checked) <= size + 2


def test_sampled_verifies_each_sixteenth_block_and_the_last_of_each_file(
    step: Path, checked: Counter[tuple[str, int]]
) -> None:
    load(step, blank(some_tensors(20)), "sampled")
    assert set(+checked) == blocks(step, lambda index, count: index % 16 == 0 or index == count - 1)


def test_sizes_verifies_no_block(step: Path, checked: Counter[tuple[str, int]]) -> None:
    load(step, blank(some_tensors(20)), "sizes")
    assert not +checked


def largest(folder: Path) -> Path:
    """The largest data file, in which the tensor `large` lies first."""
    return max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("verify", "block", "found"),
    [("full", 5, True), ("sampled", 16, True), ("sampled", 5, False), ("sizes", 16, False)],
)
def test_a_flipped_bit_is_found_where_the_mode_looks_and_not_elsewhere(
    step: Path, verify: Verify, block: int, found: bool
) -> None:
    flip(largest(step), block * BLOCK + 100)
    into = blank(some_tensors(20))
    if found:
        place = f"step-00000020/{largest(step).name}: block {block} \\(from byte {block * BLOCK}\\)"
        with pytest.raises(Damaged, match=place):
            load(step, into, verify)
    else:
        load(step, into, verify)
        assert not same(into, some_tensors(20))


def test_sizes_finds_a_truncated_file(step: Path) -> None:
    os.truncate(largest(step), largest(step).stat().st_size - 1)
    with pytest.raises(Damaged, match=r"\d+ bytes, \d+ were committed"):
        load(step, blank(some_tensors(20)), "sizes")


def test_a_kernel_that_reads_a_few_bytes_at_a_time_changes_nothing(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: really(fd, [buffers[0][:1000]], at))
    into = blank(some_tensors(20))
    load(step, into)
    assert same(into, some_tensors(20))


def test_a_file_that_vanishes_or_shrinks_while_it_is_read_is_damage(step: Path) -> None:
    source = VerifyingReader(step, marker_of(step))
    path = largest(step)
    os.truncate(path, 3 * BLOCK + 5)
    with pytest.raises(Damaged, match=rf"{path.name}: block 3: ends at byte {3 * BLOCK + 5}, \d+ were committed"):
        with_reader(source, blank(some_tensors(20)))
    path.unlink()
    with pytest.raises(Damaged, match=rf"step-00000020/{path.name}: No such file or directory"):
        with_reader(source, blank(some_tensors(20)))


@pytest.mark.parametrize("name", [".metadata", "__0.metadata"])
def test_a_malicious_description_is_never_unpickled(step: Path, tmp_path: Path, name: str) -> None:
    """`__0.metadata`: where torch looks for a rank's own description if the common one cannot be read."""
    canary = tmp_path / "canary"
    size = (step / ".metadata").stat().st_size
    (step / ".metadata").unlink()
    (step / name).write_bytes(pickle.dumps(Evil(canary)).ljust(size, b"."))
    with pytest.raises(Damaged):
        VerifyingReader(step, marker_of(step)).read_metadata()
    with pytest.raises(Damaged, match=r"only .metadata describes the tensors"):
        VerifyingReader(step, marker_of(step)).read_metadata(rank=0)
    with pytest.raises(CheckpointException):
        dcp.load(blank(some_tensors(20)), storage_reader=VerifyingReader(step, marker_of(step)), no_dist=True)
    with pytest.raises(Damaged):
        read_whole(step)
    assert not canary.exists()
    pickle.loads((step / name).read_bytes())
    assert canary.exists()


def test_a_malicious_tensor_is_not_unpickled_even_where_blocks_are_not_verified(step: Path, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", largest(step)
    evil = tmp_path / "evil"
    torch.save(Evil(canary), evil)
    whole, large = path.read_bytes(), some_tensors(20)["large"].nbytes
    content = bytearray(evil.read_bytes())
    metadata = VerifyingReader(step, marker_of(step)).read_metadata()
    place = next(info for index, info in metadata.storage_data.items() if index.fqn == "large")
    assert place.relative_path == path.name and len(content) < place.length and large < place.length
    middle = whole[place.offset : place.offset + place.length - len(content)]
    path.write_bytes(whole[: place.offset] + middle + content + whole[place.offset + place.length :])
    with pytest.raises(Damaged, match=r"large .* cannot be read as a tensor"):
        load(step, blank(some_tensors(20)), "sizes")
    assert not canary.exists()


def test_objects_are_refused_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    commit(tmp_path / "step-00000001", {"weights": torch.ones(3), "thing": Evil(canary)}, BLOCK)
    canary.unlink(missing_ok=True)
    source = VerifyingReader(tmp_path / "step-00000001", marker_of(tmp_path / "step-00000001"))
    with pytest.raises(Damaged, match=r"thing .* is no plain tensor"):
        with_reader(source, {"thing": object()})
    assert not canary.exists()


def test_after_damage_no_reader_touches_the_tensors_any_more() -> None:
    """The previous step is loaded into the same tensors at once."""
    running: set[int] = set()
    both = threading.Barrier(2)

    def work(run: Any) -> None:
        running.add(run)
        if run < 2:
            both.wait(10)
        if run == 0:
            running.remove(run)
            raise Damaged("here")
        threading.Event().wait(0.3)  # a read that takes its time
        running.remove(run)

    with pytest.raises(Damaged):
        reader._in_parallel(work, list(range(50)), 2)  # type: ignore[arg-type]
    assert not running


def test_an_abort_does_not_wait_for_a_reader_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRx raises it in the waiting thread; the file system may hang for minutes."""
    stuck, ended = threading.Event(), threading.Event()

    def read(run: Any) -> None:
        stuck.wait(20)
        ended.set()

    def aborted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "wait", aborted)
    with pytest.raises(KeyboardInterrupt):
        reader._in_parallel(read, [1], 1)  # type: ignore[list-item]
    assert not ended.is_set()
    stuck.set()
