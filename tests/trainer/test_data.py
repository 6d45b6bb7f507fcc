"""Text becomes the same samples everywhere, once, and never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from holdfast.config import ConfigError, RunConfig
from tests.trainer.conftest import Configure, configured
from trainer.data import Dataset, open_dataset

LENGTH = 8


def small(text: Path | str, batch: int = 4, *more: str) -> RunConfig:
    """One rank, samples of 8 tokens, batches of `batch`."""
    return configured(
        "cluster.nodes=1",
        f"data.path=[{text}]",
        f"data.sequence_length={LENGTH}",
        "data.limit_mib=null",
        f"training.global_batch_size={batch}",
        "training.micro_batch_size=1",
        *more,
    )


def numbered_text(path: Path, samples: int) -> Path:
    """A text whose samples are all different: sample i begins with its number."""
    path.write_text("".join(f"{number:07d} " for number in range(samples)) + "!")
    return path


@pytest.fixture
def ten_batches(tmp_path: Path) -> Dataset:
    """case-19's data set: 40 samples, batches of 4."""
    return open_dataset(small(numbered_text(tmp_path / "text", 40)), tmp_path, tmp_path / "cache")


# --- samples ---


def test_a_sample_is_a_stretch_of_the_text_and_one_token_more(ten_batches: Dataset) -> None:
    batch = ten_batches.batch(1, 0, 4)
    assert tuple(batch.shape) == (1, LENGTH + 1)
    number = int(ten_batches.sample_ids(1)[0])
    following = f"{number + 1:07d} "[:1] if number < 39 else "!"
    assert bytes(batch[0].tolist()).decode() == f"{number:07d} {following}"


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_and_micro_batches_together_are_the_global_batch_in_order_at_any_world_size(
    ten_batches: Dataset, world_size: int
) -> None:
    for step in range(1, 25):
        seen = [
            int(bytes(ten_batches.batch(step, rank, world_size, micro=micro)[0, :7].tolist()))
            for rank in range(world_size)
            for micro in range(4 // world_size)
        ]
        assert seen == ten_batches.sample_ids(step).tolist()


def test_each_epoch_of_ten_batches_has_every_sample_once_in_its_own_order(ten_batches: Dataset) -> None:
    assert ten_batches.samples == 40
    epochs = [
        np.concatenate([ten_batches.sample_ids(step) for step in range(first, first + 10)]).tolist()
        for first in (1, 11, 21)
    ]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("saved_at", [10, 20])
def test_a_run_resumed_at_an_epoch_edge_goes_on_with_the_next_epoch(tmp_path: Path, saved_at: int) -> None:
    config = small(numbered_text(tmp_path / "text", 40))
    unbroken = open_dataset(config, tmp_path, tmp_path / "cache")
    resumed = open_dataset(
        config, tmp_path, tmp_path / "cache"
    )  # as a new process: nothing but the step is carried over
    for step in range(saved_at + 1, saved_at + 11):
        assert resumed.batch(step, 0, 2, micro=1).equal(unbroken.batch(step, 0, 2, micro=1))


def test_no_sample_is_repeated_or_lost_when_the_world_size_changes_in_an_epoch(ten_batches: Dataset) -> None:
    seen = [
        int(bytes(row[:7].tolist()))
        for step in range(1, 11)
        for world_size in [4 if step <= 5 else 2 if step <= 8 else 1]
        for rank in range(world_size)
        for micro in range(4 // world_size)
        for row in ten_batches.batch(step, rank, world_size, micro=micro)
    ]
    assert sorted(seen) == list(range(40))


def test_an_epoch_may_end_within_a_batch(tmp_path: Path) -> None:
    dataset = open_dataset(small(numbered_text(tmp_path / "text", 10)), tmp_path, tmp_path / "cache")
    ids = np.concatenate([dataset.sample_ids(step) for step in range(1, 6)]).tolist()
    assert sorted(ids[:10]) == sorted(ids[10:]) == list(range(10))


def test_a_batch_that_a_world_size_cannot_share_is_refused(ten_batches: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"training\.global_batch_size = 4: 3 ranks x .*multiple of 3"):
        ten_batches.batch(1, 0, 3)


# --- the token file ---


def test_the_default_text_is_the_standard_library(tmp_path: Path, configure: Configure) -> None:
    dataset = open_dataset(configure(), tmp_path, tmp_path / "cache")
    assert dataset.tokens == 2**20  # data.limit_mib=1
    index = json.loads((tmp_path / "cache" / dataset.fingerprint / "index.json").read_text())
    assert index["sources"][0]["path"].endswith(".py")
    assert sum(source["size"] for source in index["sources"]) == index["tokens"] == 2**20
    assert (index["dtype"], index["tokenizer"]) == ("uint8", "bytes")


def test_the_fingerprint_follows_content_and_limit_not_place_or_time(tmp_path: Path) -> None:
    def fingerprint(text: Path, *more: str) -> str:
        return open_dataset(small(text, 4, *more), tmp_path, tmp_path / "cache").fingerprint

    text = numbered_text(tmp_path / "text", 40)
    first = fingerprint(text)
    os.utime(text, (1, 1))
    assert fingerprint(text) == first
    assert fingerprint(text.rename(tmp_path / "moved")) == first
    moved = tmp_path / "moved"
    assert fingerprint(moved, "data.limit_mib=0.0002") != first
    moved.write_text(moved.read_text().replace("0000007", "0000070"))
    assert fingerprint(moved) != first


def test_files_below_a_folder_come_in_a_fixed_order_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name in ("b/2", "a/test/1", ".hidden/x", "c", ".x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n" * 20)
    dataset = open_dataset(small("texts"), tmp_path, tmp_path / "cache")
    index = json.loads((tmp_path / "cache" / dataset.fingerprint / "index.json").read_text())
    assert [source["path"] for source in index["sources"]] == [str(folder / name) for name in ("a/test/1", "b/2", "c")]


def test_a_second_start_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(numbered_text(tmp_path / "text", 40))
    first = open_dataset(config, tmp_path, tmp_path / "cache")
    monkeypatch.setattr("trainer.data.sources.Source.read", lambda source: pytest.fail("the text was read again"))
    assert open_dataset(config, tmp_path, tmp_path / "cache").fingerprint == first.fingerprint


def test_processes_that_race_share_one_token_file(tmp_path: Path) -> None:
    text, cache = numbered_text(tmp_path / "text", 200_000), tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: _open_in_process(text, cache), range(4)))
    assert [outcome.returncode for outcome in outcomes] == [0] * 4, outcomes
    assert len({outcome.stdout for outcome in outcomes}) == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1, "a partial shard was left"


def test_without_file_locks_processes_that_race_still_share_one_token_file(tmp_path: Path) -> None:
    text, cache = numbered_text(tmp_path / "text", 100_000), tmp_path / "cache"
    no_locks = "import fcntl\ndef flock(*_): raise OSError(38, 'no locks here')\nfcntl.flock = flock"
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: _open_in_process(text, cache, no_locks), range(4)))
    assert [outcome.returncode for outcome in outcomes] == [0] * 4, outcomes
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1, "a partial shard was left"


@pytest.mark.parametrize(
    "moment",
    [
        "import trainer.data.shard as s; s.sync_folder = die",
        "import trainer.data.shard as s; s._publish = die",
        "import trainer.data.shard as s; s._write_synced = die",
        "import trainer.data.tokenizer as t; t.Bytes.encode = die",
        "import trainer.data.opening as d; d._remember = die",
    ],
)
def test_a_kill_at_any_moment_leaves_no_torn_token_file(tmp_path: Path, moment: str) -> None:
    text, cache = numbered_text(tmp_path / "text", 40), tmp_path / "cache"
    die = "import os, signal\ndef die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
    assert _open_in_process(text, cache, die + moment).returncode == -signal.SIGKILL
    for shard in cache.glob("[!.]*/"):
        assert (shard / "tokens.bin").stat().st_size == json.loads((shard / "index.json").read_text())["tokens"] == 321
    assert open_dataset(small(text), tmp_path, cache).tokens == 321


@pytest.mark.parametrize("damage", ["cut", "no index", "empty index", "no tokens"])
def test_a_damaged_token_file_is_made_again(tmp_path: Path, damage: str) -> None:
    config = small(numbered_text(tmp_path / "text", 40))
    folder = tmp_path / "cache" / open_dataset(config, tmp_path, tmp_path / "cache").fingerprint
    if damage == "cut":
        os.truncate(folder / "tokens.bin", 100)
    elif damage == "empty index":
        os.truncate(folder / "index.json", 0)
    else:
        (folder / ("index.json" if damage == "no index" else "tokens.bin")).unlink()
    dataset = open_dataset(config, tmp_path, tmp_path / "cache")
    assert dataset.tokens == 321
    assert sorted(path.name for path in folder.iterdir()) == ["index.json", "tokens.bin"]


def test_what_a_dead_process_left_behind_is_removed_once_it_is_old(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in (".old.partial", ".young.partial"):
        (cache / name).mkdir(parents=True)
        (cache / name / "tokens.bin").write_text("x")
    for path in (cache / ".old.partial" / "tokens.bin", cache / ".old.partial"):
        os.utime(path, (1, 1))
    open_dataset(small(numbered_text(tmp_path / "text", 40)), tmp_path, cache)
    assert [path.name for path in cache.glob(".*.partial")] == [".young.partial"]


def _open_in_process(text: Path, cache: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    code = f"""{first}
from pathlib import Path
from tests.trainer.test_data import small
from trainer.data import open_dataset
dataset = open_dataset(small({str(text)!r}), Path(), Path({str(cache)!r}))
print(dataset.fingerprint, dataset.tokens)
"""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=False
    )


# --- refusals ---


def test_every_path_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "hollow").mkdir()
    config = small("absent, empty, hollow")
    with pytest.raises(ConfigError) as caught:
        open_dataset(config, tmp_path, tmp_path / "cache")
    assert [(problem.key, problem.got) for problem in caught.value.problems] == [
        ("data.path", "absent"),
        ("data.path", "empty"),
        ("data.path", "hollow"),
    ]
    assert "does not exist" in str(caught.value)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = numbered_text(tmp_path / "text", 40)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read anything, and tests may run as root
    with pytest.raises(ConfigError, match=r"data\.path = .*cannot be read \(permission denied\)"):
        open_dataset(small(text), tmp_path, tmp_path / "cache")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"abc\0" * 100)
    with pytest.raises(ConfigError, match=r"data\.path = .*weights\.bin.*NUL"):
        open_dataset(small("weights.bin"), tmp_path, tmp_path / "cache")


def test_fewer_samples_than_a_global_batch_is_refused_with_the_numbers(tmp_path: Path) -> None:
    numbered_text(tmp_path / "text", 3)
    reason = "its 25 tokens make 3 samples of data.sequence_length=8, fewer than training.global_batch_size=4"
    with pytest.raises(ConfigError, match=rf"data\.path = \['text'\]: {reason}"):
        open_dataset(small("text"), tmp_path, tmp_path / "cache")


def test_text_that_changes_while_it_is_read_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = numbered_text(tmp_path / "text", 40)
    monkeypatch.setattr("trainer.data.sources.Source.digest", lambda source: "another digest")
    with pytest.raises(OSError, match="text changed while it was read"):
        open_dataset(small(text), tmp_path, tmp_path / "cache")
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


def test_importing_the_data_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, trainer.data; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=True
    )
    assert printed.stdout.strip() == "[]"
