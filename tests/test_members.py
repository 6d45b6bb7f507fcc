"""Who is there: pods say so in the run directory, and the one that counts trusts no clock but its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.members import Member, Members, Presence, forget, path_of
from holdfast.run_directory import RunDirectory

LEASE_S = 12.0
ME = Member("job", 0, 1, "pod-1", 0, 0, 0)


class Clock:
    """Monotonic seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def says(run: RunDirectory, member: Member, count: int) -> None:
    """One beat of a pod."""
    path = path_of(run, member.jobset_attempt, member.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**vars(member), "count": count}))


def wait_for(what: Callable[[], object]) -> None:
    """Poll until it holds, at most for 20 s."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pod_is_there_as_long_as_it_is_seen_to_change(tmp_path: Path) -> None:
    run, clock = RunDirectory(tmp_path), Clock()
    members = Members(run, "job", 0, LEASE_S, clock)
    assert members.look() == []
    seen = []
    for second in range(0, 40, 2):
        clock.now = second
        says(run, ME, min(second, 10))  # silent after second 10
        seen.append((second, members.look() == [ME]))
    assert next(second for second, there in seen if not there) == 10 + LEASE_S
    says(run, ME, 99)
    assert members.look() == [ME], "it is back as soon as it changes"


def test_a_pause_of_the_one_that_counts_is_not_held_against_anybody(tmp_path: Path) -> None:
    """Nobody could have been seen meanwhile; perhaps the file system hung for all."""
    run, clock = RunDirectory(tmp_path), Clock()
    members = Members(run, "job", 0, LEASE_S, clock)
    says(run, ME, 1)
    members.look()
    clock.now = 1000
    assert members.look() == [ME]
    says(run, ME, 2)
    clock.now = 1001
    assert members.look() == [ME]


def test_pods_of_another_job_or_attempt_and_torn_files_do_not_count(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    says(run, replace(ME, job="other", index=2), 1)
    says(run, replace(ME, jobset_attempt=1, index=3), 1)
    says(run, replace(ME, index=4), 1)
    for name, text in (("a0-5.json", '{"job": "jo'), ("a0-6.json", '{"job": "job"}'), ("a0-7.json", "[]")):
        (path_of(run, 0, 0).parent / name).write_text(text)
    assert Members(run, "job", 0, LEASE_S).look() == [replace(ME, index=4)]
    forget(run)
    assert not any(path_of(run, 0, 0).parent.iterdir())


def test_presence_beats_says_changes_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    members = Members(run, "job", 0, LEASE_S)
    with Presence(run, ME, beat_s=60) as presence:
        wait_for(lambda: members.look() == [ME])
        presence.say(replace(ME, generation=1, training=2))
        wait_for(lambda: members.look() == [replace(ME, generation=1, training=2)])  # long before the next beat
    assert members.look() == [] and not any(path_of(run, 0, 0).parent.iterdir())
    with Presence(run, ME, beat_s=0.01):
        path = path_of(run, 0, 1)
        wait_for(path.exists)
        before = path.read_text()
        wait_for(lambda: path.read_text() != before)


def test_a_folder_that_cannot_be_written_silences_a_pod_and_ends_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    folder = path_of(run, 0, 0).parent
    folder.write_text("a file where the folder should be")
    with Presence(run, ME, beat_s=0.01) as presence:
        presence.say(replace(ME, training=1))
        assert Members(run, "job", 0, LEASE_S).look() == []
        os.unlink(folder)  # the storage is back
        members = Members(run, "job", 0, LEASE_S)
        wait_for(lambda: members.look() == [replace(ME, training=1)])
