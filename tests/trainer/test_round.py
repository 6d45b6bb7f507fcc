"""Under torchrun: a launcher whose ranks have lost their peers ends at once, and no other one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config import names
from holdfast.run_directory import Owner, RunDirectory
from tests.trainer.fake_pod import FakePod, runs
from trainer.pod import round as rounds
from trainer.pod.round import Round


class Launcher:
    """One with ranks or without; `code` once it has ended."""

    def __init__(self) -> None:
        self.has_ranks = False
        self.ended_with: int | None = None
        self.killed = False

    def code(self) -> int | None:
        return self.ended_with

    def ranks(self) -> list[int]:
        return [1] if self.has_ranks else []

    def kill_all(self) -> None:
        self.killed, self.ended_with = True, -9


class Node:
    """One of a job's nodes: launchers, one after the other."""

    def __init__(self, run: RunDirectory, owner: Owner, index: int) -> None:
        self._pod: Any = SimpleNamespace(run=run, environment={names.ENV_GROUP_RANK: str(index)})
        self._owner = owner
        self.starts()

    def starts(self) -> None:
        self.launcher = Launcher()
        self.round = Round(self._pod, self._owner)
        self.round.began()

    def look(self) -> bool:
        """Whether its launcher goes on."""
        child: Any = self.launcher
        self.round.look(child)
        return not self.launcher.killed

    def ends(self, code: int) -> None:
        self.launcher.ended_with = code
        self.look()
        self.round.ended()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Two of them, their ranks at work."""
    monkeypatch.setattr(rounds, "LOOK_S", 0.0)
    monkeypatch.setattr(rounds, "READS_PER_S", 1e9)
    run = RunDirectory(tmp_path)
    owner = run.take(nodes=2, job="job", jobset_attempt=0, pod="control", lease_s=0.1)
    made = [Node(run, owner, index) for index in range(2)]
    for node in made:
        node.launcher.has_ranks = True
        assert node.look()
    return made


@pytest.mark.parametrize("at_first", [True, False])
def test_a_file_system_that_hiccups_ends_no_launcher(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch, at_first: bool
) -> None:
    """A peer that cannot be read now says nothing, whether it could be read before or can be later."""
    if at_first:
        nodes[1].starts()
        nodes[1].launcher.has_ranks = True
    monkeypatch.setattr(rounds, "read_json", lambda path: None)  # what it answers to any error of the storage
    assert nodes[1].look()
    monkeypatch.undo()
    monkeypatch.setattr(rounds, "LOOK_S", 0.0)
    time.sleep(0.01)
    assert nodes[1].look()
    nodes[0].ends(1)
    nodes[1].round._next_look = 0.0
    assert not nodes[1].look(), "and later it is seen all the same"


def test_a_launcher_with_ranks_ends_when_one_of_another_node_fails(nodes: list[Node]) -> None:
    nodes[0].ends(1)
    assert not nodes[1].look() and "launchers of nodes 0 have ended" in nodes[1].round.broken


def test_a_node_lost_without_a_word_is_noticed_when_its_next_launcher_starts(nodes: list[Node]) -> None:
    assert nodes[1].look()
    nodes[0].starts()
    assert not nodes[1].look()


def test_the_next_round_is_not_ended_by_ends_of_the_one_before(nodes: list[Node]) -> None:
    """Node 0 fails and starts again at once; node 1, whose rank hangs, ends after that and starts again as well."""
    nodes[0].ends(1)
    nodes[0].starts()
    assert nodes[0].look(), "it has no ranks yet, and waits"
    assert not nodes[1].look()
    nodes[1].ends(-9)
    assert nodes[0].look()
    nodes[1].starts()
    for _ in range(2):
        for node in nodes:
            node.launcher.has_ranks = True
            assert node.look()


def test_a_peer_that_failed_before_it_was_looked_at_is_noticed_too(nodes: list[Node]) -> None:
    nodes[1].starts()
    nodes[0].starts()
    nodes[0].ends(1)
    assert nodes[1].look()
    nodes[1].launcher.has_ranks = True
    assert not nodes[1].look()


def test_a_node_whose_ranks_have_finished_leaves_the_others_their_time(nodes: list[Node]) -> None:
    """Rank 0 may still be about to commit the last step."""
    nodes[1].ends(0)
    assert nodes[0].look() and nodes[0].look()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[FakePod]:
    fake = FakePod(tmp_path)
    yield fake
    fake.close()


def test_a_pod_with_a_hung_rank_ends_with_1_within_seconds_of_its_peer(pod: FakePod) -> None:
    owner = pod.run.take(nodes=2, job="job", jobset_attempt=0, pod="control", lease_s=0.1)
    peer = Node(pod.run, owner, 1)
    (pod.run_dir.parent / "trainer.py").write_text("import time; time.sleep(60)")
    script = f"cd {pod.run_dir.parent}; PYTHONPATH=; $PYTHON -m trainer launcher & echo $! >$SCRATCH/up; wait"
    process = pod.start(script, "worker", "recovery.in_job=false", "recovery.in_process=false", "recovery.spares=0")
    pod.until_ready()
    (rank,) = pod.pids()
    time.sleep(2.5)  # it has been looked at by now
    assert process.poll() is None and runs(rank)
    since = time.monotonic()
    peer.ends(1)
    code, output = pod.ends(process)
    assert code == 1 and "launchers of nodes 1 have ended" in output.splitlines()[-1], output
    assert not runs(rank) and time.monotonic() - since < 15
