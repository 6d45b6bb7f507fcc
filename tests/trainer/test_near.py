"""Both tiers together: the newest step that every rank can get back wins, wherever it lies."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.saves import Session, config, same

SETS = (
    "checkpoint.interval_steps=10",
    "checkpoint.local.interval_steps=3",
    "checkpoint.persist_timeout_s=90",
    "recovery.checkpoint_section_timeout_s=120",
)
LIMIT_S = 100


def _settle_local(session: Session) -> None:
    """Until the local save in flight is complete on all nodes, as far as this rank has to do with it."""
    near = session.checkpoints._near
    assert near is not None and near._pipeline is not None
    session.checkpoints.between()  # on a GPU the copy waits for the next step's launch
    deadline = time.monotonic() + 60
    while (near._pipeline.busy or near._pipeline._unsettled is not None) and time.monotonic() < deadline:
        near._pipeline.poll()
        time.sleep(0.02)


def _train(rank: int, world: int, folder: str, until: int, *sets: str) -> dict[int, dict[str, torch.Tensor]]:
    """Train from a fresh start; what the state was at each step."""
    os.environ[names.ENV_NODE_VOLUME] = f"{folder}/node-{rank}"
    session = Session(f"{folder}/run", config(*SETS, *sets), rank, world)
    session.checkpoints.restore()
    session.await_writer()
    assert session.local is not None
    states = {}
    for step in range(1, until + 1):
        session.step(step)
        states[step] = session.whole()
        session.settle()
        _settle_local(session)
    session.checkpoints._saving.retention.finish(30)
    session.close()
    return states


def _resume(rank: int, world: int, folder: str, nodes: list[int], *sets: str) -> dict[str, Any]:
    """What the next attempt goes on with; nodes: the node of each rank."""
    os.environ[names.ENV_NODE_VOLUME] = f"{folder}/node-{nodes[rank]}"
    session = Session(f"{folder}/run", config(*SETS, *sets), rank, world, cycle=1)
    step = session.checkpoints.restore()
    state = session.whole()
    (restored,) = session.events("restore")
    skipped = [event["why"] for event in session.events("skipped")]
    session.close()
    return {"step": step, "state": state, "tier": restored["tier"], "skipped": skipped}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.timeout(240)
def test_a_local_save_newer_than_the_shared_one_is_what_training_goes_on_with_also_on_other_nodes(
    tmp_path: Path,
) -> None:
    """One node is wiped, and the ranks come up on each other's node: parts are found by what they are."""
    states = run_ranks(_train, 2, str(tmp_path), 16, timeout_s=LIMIT_S)
    shutil.rmtree(tmp_path / "node-0")
    for result in run_ranks(_resume, 2, str(tmp_path), [1, 0], timeout_s=LIMIT_S):
        assert (result["step"], result["tier"]) == (15, "local")
        assert same(result["state"], states[0][15])


@pytest.mark.timeout(240)
def test_a_shared_step_newer_than_the_local_one_is_taken_and_local_ones_of_a_left_time_line_go(tmp_path: Path) -> None:
    states = run_ranks(_train, 2, str(tmp_path), 10, timeout_s=LIMIT_S)
    for result in run_ranks(_resume, 2, str(tmp_path), [0, 1], timeout_s=LIMIT_S):
        assert (result["step"], result["tier"]) == (10, "shared")
        assert same(result["state"], states[0][10])


@pytest.mark.timeout(240)
def test_when_the_newest_shared_step_is_damaged_a_local_one_is_better_than_an_older_shared_one(tmp_path: Path) -> None:
    states = run_ranks(_train, 2, str(tmp_path), 20, timeout_s=LIMIT_S)
    _flip(next((tmp_path / "run/checkpoints/step-00000020").glob("__1_*.distcp")))
    for result in run_ranks(_resume, 2, str(tmp_path), [0, 1], timeout_s=LIMIT_S):
        assert (result["step"], result["tier"]) == (18, "local")
        assert same(result["state"], states[0][18])


@pytest.mark.timeout(240)
def test_another_experiment_finds_nothing_on_the_nodes_and_the_shared_tier_says_what_differs(tmp_path: Path) -> None:
    run_ranks(_train, 2, str(tmp_path), 14, timeout_s=LIMIT_S)
    changed = ("training.learning_rate=0.5", 'resume.allow_changes=["training.learning_rate"]')
    for result in run_ranks(_resume, 2, str(tmp_path), [0, 1], *changed, timeout_s=LIMIT_S):
        assert (result["step"], result["tier"]) == (10, "shared")
