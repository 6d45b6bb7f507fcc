"""The local tier on gloo, with real processes and sockets: what was saved comes back, whatever happens to nodes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.config import names
from tests.trainer.gloo import run_ranks
from tests.trainer.local_nodes import Rank, ThreadWriter
from trainer.checkpoint.local.files import list_parts
from trainer.checkpoint.local.persist import DELAY_VARIABLE
from trainer.checkpoint.writer import Writer

Damage = Callable[[Path, int], None]
"""(root, newest step) -> None: what happens between two attempts."""


def chapters(
    rank: int, world_size: int, root: str, commits: int, then: list[tuple[Damage, list[int]]]
) -> tuple[list[int], list[tuple[int | None, bool, list[str]]]]:
    """An attempt with some complete local saves, then damage and a restore, as often as asked.

    places[rank]: the node on which the rank now is. Returns the steps of the saves on rank 0, and of each restore the
    step, whether the state is that step's bit for bit, and why newer saves were passed over.
    """
    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    me.start(0)
    me.steps_until(1, commits)
    steps = [[event["step"] for event in me.events("local_commit")]] * world_size
    dist.all_gather_object(steps, steps[0])
    restored = []
    for cycle, (damage, places) in enumerate(then, 1):
        if rank == 0:
            damage(Path(root), steps[0][-1])
        me = Rank(Path(root), rank, world_size, cycle, places[rank], ThreadWriter())
        save = me.restore()
        restored.append(
            (None if save is None else save.step, save is not None and me.state_is_of(save.step), me.tier.passed_over)
        )
    return steps[0], restored


def _wipe(*nodes: int) -> Damage:
    return _Wipe(nodes)


class _Wipe:
    def __init__(self, nodes: tuple[int, ...]) -> None:
        self.nodes = nodes

    def __call__(self, root: Path, _: int) -> None:
        for node in self.nodes:
            shutil.rmtree(root / f"node-{node}")


class _Flip:
    """One bit of rank 0's part of the newest save on one node."""

    def __init__(self, node: int) -> None:
        self.node = node

    def __call__(self, root: Path, step: int) -> None:
        (path,) = root.glob(f"node-{self.node}/step-{step:08d}.*/rank-0.bin")
        content = bytearray(path.read_bytes())
        content[17] ^= 4
        path.write_bytes(content)


def _lineage_is_torn(rank: int, world_size: int, root: str) -> str:
    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    if rank == 0:
        (me.run.attempts / names.LINEAGE).write_text('{"attempts": [')
    dist.barrier()
    try:
        me.restore()
    except OSError as error:
        return str(error)
    return "restored"


def test_a_list_of_attempts_that_rank_0_cannot_read_fails_the_restore_on_all_ranks(tmp_path: Path) -> None:
    """The others would wait for rank 0 until the process group's timeout."""
    for said in run_ranks(_lineage_is_torn, 2, str(tmp_path)):
        assert "the list of the run's attempts cannot be read" in said


@pytest.mark.slow
def test_four_nodes_one_wiped_and_two_swapped_restore_bit_for_bit(tmp_path: Path) -> None:
    results = run_ranks(chapters, 4, str(tmp_path), 2, [(_wipe(1), [0, 1, 3, 2])], timeout_s=100)
    for steps, [(step, right, _)] in results:
        assert (step, right) == (steps[-1], True)


@pytest.mark.slow
def test_a_lost_node_goes_on_from_its_neighbour_and_two_neighbours_lost_go_elsewhere(tmp_path: Path) -> None:
    then = [(_wipe(2), [0, 1, 2]), (_wipe(0, 2), [0, 1, 2])]
    for steps, [one_lost, two_lost] in run_ranks(chapters, 3, str(tmp_path), 1, then, timeout_s=100):
        assert one_lost[:2] == (steps[-1], True)
        assert two_lost[:2] == (None, False)
        assert "parts missing: rank 2 (no node has it)" in two_lost[2][0]


@pytest.mark.slow
def test_a_damaged_part_is_read_from_the_neighbour_and_then_an_older_save(tmp_path: Path) -> None:
    then = [(_Flip(0), [0, 1]), (_Flip(1), [0, 1])]
    for steps, [own_damaged, both_damaged] in run_ranks(chapters, 2, str(tmp_path), 3, then, timeout_s=100):
        assert own_damaged[:2] == (steps[-1], True)
        assert "block 0 has another checksum" in own_damaged[2][-1]
        assert both_damaged[:2] == (steps[-2], True)


def abandoned(rank: int, world_size: int, root: str) -> dict[str, Any]:
    """Attempt 0 saves beyond step 500; attempt 1 goes on from step 1 with another node in the place of node 1; in
    attempt 2 node 1 is back, with what it held."""
    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    me.start(500)
    me.steps_until(501, 2)
    me = Rank(Path(root), rank, world_size, 1, rank if rank == 0 else 9, ThreadWriter())
    me.start(1)
    me.steps_until(2, 1)
    own = me.events("local_commit")[0]["step"] if rank == 0 else None
    me = Rank(Path(root), rank, world_size, 2, rank, ThreadWriter())
    held = {stored.part.save.step for stored in list_parts(me.folder)}
    save = me.restore()
    right = save is not None and me.state_is_of(save.step)
    return {"own": own, "held": held, "restored": save, "right": right, "passed_over": me.tier.passed_over}


@pytest.mark.slow
def test_a_node_that_comes_back_brings_no_abandoned_time_line(tmp_path: Path) -> None:
    stayed, came_back = run_ranks(abandoned, 2, str(tmp_path), timeout_s=100)
    assert max(stayed["held"]) < 500 < max(came_back["held"])
    for one in (stayed, came_back):
        assert one["restored"].step == stayed["own"]
        assert one["right"]
        assert any("training went back behind it" in message for message in one["passed_over"])


def uneven(rank: int, world_size: int, root: str) -> dict[str, Any]:
    """One rank's disk is slower than the interval."""
    if rank == 1:
        os.environ[DELAY_VARIABLE] = "0.3"
    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    me.start(0)
    me.steps_until(1, 3)
    saves = {stored.part.save.folder for stored in list_parts(me.folder)}
    return {name: me.events(name) for name in ("stage", "local_skipped", "local_save_failed")} | {"saves": saves}


def test_a_slow_disk_makes_all_ranks_skip_the_same_saves_and_none_holds_too_many(tmp_path: Path) -> None:
    fast, slow = run_ranks(uneven, 2, str(tmp_path))
    assert [event["step"] for event in fast["stage"]] == [event["step"] for event in slow["stage"]]
    assert fast["local_skipped"], "the slow rank should have been waited for"
    assert len(fast["saves"]) <= 2 + 1
    assert fast["local_save_failed"] == slow["local_save_failed"] == []


def strangers(rank: int, world_size: int, root: str) -> dict[str, Any]:
    """Rank 1 belongs to another generation, as its token says."""
    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    if rank == 1:
        me.pipeline._equipment = replace(me.pipeline._equipment, token="of another generation")
    me.start(0)
    me.steps_until(1, 2)
    held = {stored.part.rank for stored in list_parts(me.folder)}
    return {name: me.events(name) for name in ("local_copy_failed", "local_save_failed")} | {"held": held}


def test_copies_that_fail_are_events_and_the_saves_count(tmp_path: Path) -> None:
    for rank, one in enumerate(run_ranks(strangers, 2, str(tmp_path))):
        assert any("the token is not that of this generation" in event["error"] for event in one["local_copy_failed"])
        assert one["local_save_failed"] == []
        assert one["held"] == {rank}


def full_disk(rank: int, world_size: int, root: str) -> dict[str, Any]:
    """Rank 1 cannot write for a while."""
    from trainer.checkpoint.local import persist

    me = Rank(Path(root), rank, world_size, 0, rank, ThreadWriter())
    me.start(0)
    first = me.steps_until(1, 1)
    patch = pytest.MonkeyPatch()
    if rank == 1:
        patch.setattr(persist, "lacks_room", lambda *_: "the disk is full")
    for step in range(first + 1, first + 9):
        me.step(step)
    patch.undo()
    me.steps_until(first + 9, 3)
    newest_whole = me.events("local_commit")[-1]["step"] if rank == 0 else None
    return {"failed": me.events("local_save_failed"), "whole": newest_whole}


def test_a_full_disk_fails_saves_and_nothing_else(tmp_path: Path) -> None:
    healthy, full = run_ranks(full_disk, 2, str(tmp_path))
    assert healthy["failed"] == []
    assert {event["error"] for event in full["failed"]} == {"the disk is full"}
    assert healthy["whole"] > full["failed"][-1]["step"]


def writer_killed(rank: int, world_size: int, root: str) -> dict[str, Any]:
    """Real writers. Rank 1's is killed in the middle of a save; later saves and copies work again."""
    os.environ[DELAY_VARIABLE] = "0.2"
    me = Rank(Path(root), rank, world_size, 0, rank, Writer(rank))
    me.start(0)
    step = me.steps_until(1, 1)
    killed = False
    while not killed:
        step += 1
        me.step(step)
        flag = [me.pipeline.busy]
        dist.broadcast_object_list(flag, 1)
        killed = flag[0]
    if rank == 1:
        assert me.writer.pid is not None
        os.kill(me.writer.pid, signal.SIGKILL)
    me.steps_until(step + 1, 4, limit_s=80)
    result = {name: me.events(name) for name in ("local_save_failed", "local_commit", "local_copy_failed")}
    dist.barrier()
    me.pipeline.close()
    last = Rank(Path(root), rank, world_size, 1, rank, ThreadWriter())
    save = last.restore()
    return result | {"restored": save and save.step, "right": save is not None and last.state_is_of(save.step)}


@pytest.mark.slow
def test_a_writer_killed_in_a_save_costs_that_save_only(tmp_path: Path) -> None:
    first, second = run_ranks(writer_killed, 2, str(tmp_path), timeout_s=110)
    assert [event["error"] for event in second["local_save_failed"]]
    assert first["local_save_failed"] == []
    newest = first["local_commit"][-1]["step"]
    assert newest > second["local_save_failed"][-1]["step"]
    for one in (first, second):
        assert (one["restored"], one["right"]) == (newest, True)
