"""A step that does not fit into this rank's GPU is refused before the model is built, once and for all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from holdfast.config import ConfigError, RunConfig, load_profile, names
from holdfast.config.gpu_memory import needed_bytes, peak
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from tests.trainer.committed import write_marker
from trainer import __main__ as rank
from trainer import gpu_memory, train
from trainer.gpu_memory import require_room
from trainer.restart import in_process
from trainer.runtime import Attempt, Identity

GPUS = ["cluster.ranks_per_node=2", "training.global_batch_size=32"]


@pytest.fixture
def config() -> RunConfig:
    return load_profile("gpu-local", GPUS)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "a-run")


def gpu_with(total_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPUs have so many bytes."""
    properties = SimpleNamespace(name="NVIDIA Little", total_memory=total_memory)
    monkeypatch.setattr(gpu_memory, "device_of", lambda _, index: torch.device("cuda", index))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def needed(config: RunConfig, ranks: int) -> int:
    found = peak(config, ranks)
    assert found is not None
    return needed_bytes(found)


def test_a_gpu_with_just_enough_memory_is_accepted_and_a_byte_less_is_not(
    config: RunConfig, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_with(needed(config, 2), monkeypatch)
    require_room(config, run, 2, 1)
    gpu_with(needed(config, 2) - 1, monkeypatch)
    with pytest.raises(ConfigError, match=r"training\.micro_batch_size = 8: .*NVIDIA Little.*data\.sequence_length="):
        require_room(config, run, 2, 1)


def test_the_ranks_that_there_are_count_and_not_those_of_the_config(
    config: RunConfig, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_with(needed(config, 2), monkeypatch)
    with pytest.raises(ConfigError):
        require_room(config, run, 1, 0)


def test_a_cpu_is_not_asked(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "device_of", lambda *_: pytest.fail("a device was looked at"))
    require_room(load_profile("cpu-test"), run, 2, 0)


def test_gpus_that_check_has_judged_are_not_judged_again(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "device_of", lambda *_: pytest.fail("a device was looked at"))
    require_room(load_profile("llama3-8b-p5x2"), run, 1, 0)


def test_a_reason_or_a_committed_step_makes_it_a_warning(
    config: RunConfig, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu_with(2**30, monkeypatch)
    with pytest.raises(ConfigError):
        require_room(config, run, 2, 0)
    require_room(load_profile("gpu-local", [*GPUS, "training.accept_gpu_memory=a try"]), run, 2, 0)
    folder = run.checkpoints / names.step_folder(7)
    folder.mkdir(parents=True)
    write_marker(folder, block_bytes=16)
    require_room(config, run, 2, 0)
    assert caplog.text.count("a rank would need") == 2


def test_an_attempt_that_cannot_fit_ends_the_run_with_one_message_and_builds_nothing(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_with(2**30, monkeypatch)
    monkeypatch.setattr(train, "train", lambda *_: pytest.fail("the model was built"))
    run = RunDirectory(tmp_path / "run")
    owner = run.take(nodes=1, job="job", jobset_attempt=0, pod="pod", lease_s=0.1)
    identity = Identity(0, 2, 0, owner.generation, 0, "pod", "node", "")
    nobody = cast(Any, None)
    log = EventLog(run.events, "rank", rank=0, world_size=2, generation=owner.generation, cycle=0, pod="p", node="n")
    survivors = train.Survivors(config, identity, run, tmp_path, log, nobody, nobody, nobody)
    with pytest.raises(ConfigError):
        rank._attempt(Attempt(owner.generation, 0, 0), survivors, in_process.HangWatch())
    terminal = run.terminal()
    assert terminal is not None and terminal.code == names.EXIT_CONFIG
    assert "1 problem" in terminal.reason and "a rank would need" in terminal.reason
