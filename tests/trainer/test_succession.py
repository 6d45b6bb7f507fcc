"""A change of size in pods whose launchers are scripts: nobody is recreated, and nobody trains in a generation that is
over."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.members import Member, Members, Presence
from holdfast.run_directory import Owner, StaleGeneration
from tests.trainer.fake_pod import FakePod, runs, wait_for

ELASTIC = (
    "cluster.nodes=3",
    "recovery.min_nodes=1",
    "training.global_batch_size=12",
    "recovery.owner_lease_s=0.6",
    "recovery.shrink_after_s=1",
    "recovery.grow_after_s=1",
    "recovery.term_timeout_s=4",
)
SAYS_ITS_ARGUMENTS = 'echo "$@" >>$SCRATCH/argv; echo $$ >>$SCRATCH/up; while :; do sleep 0.05; done'
RANK = """
import os, time
scratch = os.environ["SCRATCH"]
open(f"{scratch}/trains-{os.getpid()}", "w").close()
while not os.path.exists(f"{scratch}/leave.json"):
    time.sleep(0.02)
open(f"{scratch}/saved", "a").write("saved\\n")
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[FakePod]:
    fake = FakePod(tmp_path)
    yield fake
    fake.close()


def launched(pod: FakePod) -> list[str]:
    """Command lines of the launchers so far."""
    path = pod.run_dir.parent / "scratch" / "argv"
    return path.read_text().splitlines() if path.exists() else []


def take(pod: FakePod, nodes: int = 3) -> Owner:
    """Own the run as the control pod of the job does."""
    return pod.run.take(nodes=nodes, job="job", jobset_attempt=0, pod="control", lease_s=0.1)


def test_a_worker_goes_on_in_the_next_generation_without_ending(pod: FakePod) -> None:
    owner = take(pod)
    process = pod.start(SAYS_ITS_ARGUMENTS, "worker", *ELASTIC)
    pod.until_ready()
    members = Members(pod.run, "job", 0, 0.6)
    wait_for(lambda: [m.generation for m in members.look()] == [1])
    (first,) = pod.pids()
    pod.run.ask_to_move_on(1, "fewer are there")
    wait_for(lambda: [m.generation for m in members.look()] == [0])
    assert not runs(first) and process.poll() is None
    time.sleep(0.5)
    assert len(launched(pod)) == 1, "it waits for the next generation"
    pod.run.next_generation(owner, 2, 0.1)
    wait_for(lambda: len(pod.pids()) == 2)
    old, new = launched(pod)
    assert "--nnodes=3:19" in old and "--rdzv-id=cpu-test-g1" in old
    assert "--nnodes=2:19" in new and "--rdzv-id=cpu-test-g2" in new
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and "generation 1 is over in this pod: fewer are there" in output
    assert members.look() == [], "it takes its sign of life along"
    assert not any(map(runs, pod.pids()))


def test_ranks_save_before_their_pod_leaves_a_generation_and_the_next_ones_are_not_asked_again(pod: FakePod) -> None:
    owner = take(pod)
    folder = pod.run_dir.parent
    (folder / "trainer.py").write_text(RANK)
    script = f"cd {folder}; export PYTHONPATH=; echo x >>$SCRATCH/up; $PYTHON -m trainer & wait $!; sleep 60"
    process = pod.start(script, "worker", *ELASTIC)
    pod.until_ready()
    members = Members(pod.run, "job", 0, 0.6)
    wait_for(lambda: [m.training for m in members.look()] == [1])
    pod.run.ask_to_move_on(1, "more are there")
    wait_for(lambda: [m.generation for m in members.look()] == [0])
    scratch = folder / "scratch"
    assert (scratch / "saved").read_text() == "saved\n"
    pod.run.next_generation(owner, 3, 0.1)
    wait_for(lambda: [(m.generation, m.training) for m in members.look()] == [(2, 1)])
    assert (scratch / "saved").read_text() == "saved\n" and not (scratch / names.LEAVE_FILE).exists()
    assert process.poll() is None


def test_a_pod_that_missed_the_request_sees_the_next_generation(pod: FakePod) -> None:
    """It hung, say, while the others left."""
    owner = take(pod)
    process = pod.start(SAYS_ITS_ARGUMENTS, "worker", *ELASTIC)
    pod.until_ready()
    pod.run.next_generation(owner, 2, 0.1)
    wait_for(lambda: len(launched(pod)) == 2)
    assert "--nnodes=2:19" in launched(pod)[1] and process.poll() is None


def test_a_pod_that_comes_while_the_generation_ends_waits_for_the_next(pod: FakePod) -> None:
    owner = take(pod)
    pod.run.ask_to_move_on(1, "fewer are there")
    pod.start(SAYS_ITS_ARGUMENTS, "worker", *ELASTIC)
    members = Members(pod.run, "job", 0, 0.6)
    wait_for(lambda: [m.generation for m in members.look()] == [0])
    time.sleep(0.5)
    assert launched(pod) == []
    pod.run.next_generation(owner, 2, 0.1)
    wait_for(lambda: len(launched(pod)) == 1)
    assert "--rdzv-id=cpu-test-g2" in launched(pod)[0]


def test_a_launcher_that_ends_because_its_generation_does_is_no_failure_of_the_pod(pod: FakePod) -> None:
    """Between two looks at the records, and before the next generation is there."""
    owner = take(pod)
    script = f"echo x >>$SCRATCH/up; if [ -e $RUN/ended ]; then {SAYS_ITS_ARGUMENTS}; fi; "
    script += "sleep 0.2; echo fewer >$RUN/generations/00000001.next; touch $RUN/ended; exit 1"
    process = pod.start(script, "worker", *ELASTIC)
    members = Members(pod.run, "job", 0, 0.6)
    wait_for(lambda: (pod.run_dir / "ended").exists() and [m.generation for m in members.look()] == [0])
    pod.run.next_generation(owner, 2, 0.1)
    wait_for(lambda: launched(pod))
    assert process.poll() is None


def test_the_control_pod_shrinks_when_nobody_comes_and_grows_when_somebody_does(pod: FakePod) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = pod.start(SAYS_ITS_ARGUMENTS, names.CONTROL, *ELASTIC, port=port)
    pod.until_ready()
    one, two = (Member("job", 0, index, f"pod-{index}", 1, 0, 0) for index in (0, 1))
    with Presence(pod.run, one, 0.1) as first, Presence(pod.run, two, 0.1) as second:
        wait_for(lambda: pod.run.asked_to_move_on(1))
        assert "2 worker pods are there, and 3 of 3 nodes train: on with 2 nodes" in str(pod.run.asked_to_move_on(1))
        first.say(Member("job", 0, 0, "pod-0", 0, 0, 0))
        time.sleep(1)
        assert len(launched(pod)) == 1, "the store stays until all have left"
        second.say(Member("job", 0, 1, "pod-1", 0, 0, 0))
        wait_for(lambda: len(launched(pod)) == 2)
        with pytest.raises(StaleGeneration):
            pod.run.require_generation(1)
        first.say(Member("job", 0, 0, "pod-0", 2, 1, 1))
        second.say(Member("job", 0, 1, "pod-1", 2, 1, 1))
        time.sleep(2)
        assert pod.run.asked_to_move_on(2) is None, "nobody new is there"
        with Presence(pod.run, Member("job", 0, 2, "pod-2", 2, 0, 0), 0.1):
            wait_for(lambda: pod.run.asked_to_move_on(2))
            # Two leave, and the third ends meanwhile: the size is that of who is there when all have left.
            first.say(Member("job", 0, 0, "pod-0", 0, 0, 0))
            second.say(Member("job", 0, 1, "pod-1", 0, 0, 0))
        wait_for(lambda: len(launched(pod)) == 3)
    assert [argv.split()[0] for argv in launched(pod)] == ["--nnodes=3:19", "--nnodes=2:19", "--nnodes=2:19"]
    changes = [(event["before"], event["nodes"]) for event in pod.events("next_generation")]
    assert changes == [(3, 2), (2, 2)]
    process.send_signal(signal.SIGTERM)
    assert pod.ends(process)[0] == 75
    assert (pod.run_dir / "generations" / "00000003.end").exists(), "the generation that it had last is released"


def test_launchers_that_wait_for_one_another_in_vain_begin_anew_each_time_after_a_longer_wait(pod: FakePod) -> None:
    """All that trained vanished at once, and NVRx's launchers would wait for ever. No job need be elastic for that."""
    sets = ("recovery.owner_lease_s=0.6", "recovery.rejoin_timeout_s=1", "recovery.term_timeout_s=4")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = pod.start(SAYS_ITS_ARGUMENTS, names.CONTROL, *sets, port=port)
    pod.until_ready()
    a, b = (Member("job", 0, index, f"pod-{index}", 1, 1, 1) for index in (0, 1))
    with Presence(pod.run, a, 0.1) as first, Presence(pod.run, b, 0.1) as second:
        time.sleep(2.5)
        assert pod.run.asked_to_move_on(1) is None, "they have ranks"
        for presence, member in ((first, a), (second, b)):
            presence.say(replace(member, ranks=0, training=0))
        wait_for(lambda: pod.run.asked_to_move_on(1))
        assert "all 2 nodes are there, and none has had a rank for 1 s" in str(pod.run.asked_to_move_on(1))
        for generation in (0, 2):
            for presence, member in ((first, a), (second, b)):
                presence.say(replace(member, generation=generation, ranks=0, training=0))
            wait_for(lambda: len(launched(pod)) == 2)
        wait_for(lambda: pod.run.asked_to_move_on(2))
        assert "for 2 s: launchers start anew" in str(pod.run.asked_to_move_on(2))
    assert [(event["before"], event["nodes"]) for event in pod.events("next_generation")] == [(2, 2)]
    process.send_signal(signal.SIGTERM)
    assert pod.ends(process)[0] == 75
