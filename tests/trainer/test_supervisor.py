"""PID 1 of a pod, with shell scripts in place of launchers: its exit code comes from the records, never from theirs."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import names
from holdfast.process_identity import pid_started
from holdfast.run_directory import Terminal
from holdfast.terminal import record_named_in, terminal_id
from tests.trainer.fake_pod import FakePod, runs

ID = terminal_id(Terminal(93, "the same again"))
RANK = "import sys, time; time.sleep(60)"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[FakePod]:
    fake = FakePod(tmp_path)
    yield fake
    fake.close()


WAITS = "trap 'exit 0' TERM; echo $$ >$SCRATCH/up; while :; do sleep 0.05; done"
IGNORES_SIGTERM = "trap '' TERM; (setsid sleep 60 & echo $! $$ >$SCRATCH/up); while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("echo '{\"step\": 20}' >$RUN/COMPLETE; exit 1", 0, "the run is complete"),
        ('echo \'{"code": 93, "reason": "no use"}\' >$RUN/TERMINAL.json; exit 0', 93, "no use"),
        ('echo \'{"code": 78, "reason": "wrong"}\' >$RUN/TERMINAL.json; exit 1', 78, "wrong"),
        ("exit 0", 1, "ended with 0 and the run is not complete"),
        ("exit 78", 1, "ended with 78 and the run is not complete"),
        ("kill -9 $$", 1, "ended with -9 and the run is not complete"),
    ],
)
def test_the_exit_code_follows_from_the_records_whatever_the_launcher_says(
    pod: FakePod, script: str, code: int, says: str
) -> None:
    pod.take()
    ended, output = pod.ends(pod.start(script))
    assert (ended, [event["code"] for event in pod.events("pod_end")]) == (code, [code])
    assert says in output.splitlines()[-1]


def test_a_record_that_is_there_ends_a_new_pod_before_its_launcher_starts(pod: FakePod) -> None:
    pod.take()
    pod.run.write_terminal(Terminal(93, "as before"))
    assert pod.ends(pod.start("touch $RUN/launched"))[0] == 93
    pod.run.write_complete(step=20)
    assert pod.ends(pod.start("touch $RUN/launched", names.CONTROL))[0] == 0
    assert not (pod.run_dir / "launched").exists()


def test_a_complete_run_is_not_taken_for_one_of_another_length(pod: FakePod) -> None:
    """Ending with 0 would say that 40 steps were done."""
    pod.run.write_complete(step=20)
    code, output = pod.ends(pod.start("touch $RUN/launched", names.CONTROL, "training.steps=40"))
    assert code == 78 and "training.steps = 40: this run is complete at step 20" in output
    assert pod.run.terminal() is None and not (pod.run_dir / "launched").exists()


def test_sigterm_reaches_the_launcher_and_ends_the_pod_with_75(pod: FakePod) -> None:
    pod.take()
    process = pod.start(WAITS)
    pod.until_ready()
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and "stopped by signal SIGTERM" in output
    assert not any(map(runs, pod.pids()))


def test_a_launcher_that_ignores_sigterm_is_killed_with_what_it_has_left_elsewhere(pod: FakePod) -> None:
    """The limit is recovery.term_timeout_s + 2, below the grace period."""
    pod.take()
    process = pod.start(IGNORES_SIGTERM, "worker", "recovery.term_timeout_s=1")
    pod.until_ready()
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert pod.ends(process)[0] == 75
    assert 2.5 < time.monotonic() - since < 6
    assert len(pod.pids()) == 2 and not any(map(runs, pod.pids()))


def test_a_terminal_record_of_another_pod_stops_this_one(pod: FakePod) -> None:
    pod.take()
    process = pod.start(WAITS)
    pod.until_ready()
    pod.run.write_terminal(Terminal(93, "said elsewhere"))
    code, output = pod.ends(process)
    assert code == 93 and "said elsewhere" in output
    assert not any(map(runs, pod.pids()))


def test_a_pod_of_an_older_generation_ends_its_launcher_and_itself_with_75(pod: FakePod) -> None:
    pod.take()
    process = pod.start(WAITS)
    pod.until_ready()
    pod.take(attempt=1)
    code, output = pod.ends(process)
    assert code == 75 and "generation 1 no longer owns this run; generation 2 (pod control" in output
    assert not any(map(runs, pod.pids()))
    assert pod.ends(pod.start(WAITS))[0] == 75  # and one that comes too late does not even begin


@pytest.mark.parametrize("opened", ["", "by an earlier process with this pid", "by itself"])
def test_a_rank_without_a_section_is_killed_after_its_limit_and_one_with_a_section_is_not(
    pod: FakePod, opened: str
) -> None:
    """case-16: the rank monitor does not watch a rank before its first section. A name with `launcher` in it is no
    launcher."""
    pod.take()
    rank = f'$PYTHON -m trainer launcher & echo $! >$SCRATCH/up; wait $!; echo "rank ended with $?"; {WAITS}'
    (pod.run_dir.parent / "trainer.py").write_text(RANK)
    process = pod.start(f"cd {pod.run_dir.parent}; PYTHONPATH=; {rank}", "worker", "recovery.first_section_timeout_s=2")
    pod.until_ready()
    (pid,) = pod.pids()
    opens_a_section = opened == "by itself"
    if opened:
        pod.monitored(pid, "1234" if "earlier" in opened else pid_started(pid))
    if opens_a_section:
        time.sleep(4)
        assert runs(pid) and not pod.events("first_section_timeout")
    else:
        deadline = time.monotonic() + 2 + 5
        while runs(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (event,) = pod.events("first_section_timeout")
        assert event["pid"] == pid and 2 < event["age_s"] < 4
    process.send_signal(signal.SIGTERM)
    code, output = pod.ends(process)
    assert code == 75 and ("rank ended with 137" in output) is not opens_a_section


def test_a_control_pod_whose_port_is_taken_says_so_and_takes_nothing(pod: FakePod) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = pod.ends(pod.start("exit 0", names.CONTROL, port=port))
    assert code == 1 and f"port {port} of the store is taken" in output
    assert pod.run.owner() is None


def test_a_control_pod_is_refused_while_the_owner_lives(pod: FakePod) -> None:
    pod.run.take(nodes=2, job="another", jobset_attempt=0, pod="control", lease_s=0.1)
    code, output = pod.ends(pod.start("exit 0", names.CONTROL))
    assert code == 75 and f"host {os.uname().nodename}, pod control, pid {os.getpid()}, for " in output


def test_a_control_pod_warns_of_storage_too_small_for_the_checkpoints_to_keep(pod: FakePod) -> None:
    """case-08: with no room at the start the warning comes before the first save fails."""
    process = pod.start(WAITS, names.CONTROL, "checkpoint.keep_last=1000000000")
    pod.until_ready()
    process.send_signal(signal.SIGTERM)
    _, output = pod.ends(process)
    assert "GB free, but checkpoint.keep_last=1000000000" in output and "lower keep_last" in output


def test_wrong_input_ends_the_pod_with_78_and_a_message(pod: FakePod) -> None:
    code, output = pod.ends(pod.start("exit 0", without=names.ENV_STORE))
    assert code == 78 and f"environment variable '{names.ENV_STORE}' is missing" in output
    assert pod.run.terminal() is None
    (pod.run_dir.parent / "config.yaml").write_text("name: x\ntraining: {steps: -1}\n")
    code, output = pod.ends(pod.start("exit 0"))
    assert code == 78 and "training.steps = -1" in output and "Traceback" not in output
    terminal = pod.run.terminal()
    assert terminal is not None and terminal.code == 78


def test_the_reason_of_the_end_is_left_where_kubernetes_looks_for_it(pod: FakePod, tmp_path: Path) -> None:
    pod.run.write_terminal(Terminal(93, "the same again"))
    words = tmp_path / "termination-log"
    pod.ends(pod.start("exit 0", add={names.ENV_TERMINATION_MESSAGE: str(words)}))
    assert "the same again" in words.read_text() and f"resume.clear_terminal={ID}" in words.read_text()
    pod.run.write_complete(step=20)
    missing = str(tmp_path / "no" / "folder")
    assert pod.ends(pod.start("exit 0", add={names.ENV_TERMINATION_MESSAGE: missing}))[0] == 0


def test_the_control_pod_sets_aside_the_terminal_record_that_the_config_names_once_and_no_other(pod: FakePod) -> None:
    terminal = Terminal(93, "the same again")
    pod.run.write_terminal(terminal)
    process = pod.start(WAITS, names.CONTROL, f"resume.clear_terminal={ID}")
    pod.until_ready()
    assert pod.run.terminal() is None and (pod.run_dir / "TERMINAL.1.json").exists()
    pod.run.write_terminal(Terminal(93, "something else"))
    code, output = pod.ends(process)
    assert code == 93 and "something else" in output
    (pod.run_dir / names.TERMINAL).unlink()
    pod.run.write_terminal(terminal)
    code, output = pod.ends(pod.start("touch $RUN/launched", names.CONTROL))
    assert code == 93 and "the same again" in output, "its cause was not mended"
    assert not (pod.run_dir / "launched").exists()


def until_looked(pod: FakePod, times: int) -> None:
    """Wait until preflight has been through so often."""
    deadline = time.monotonic() + 20
    while len(pod.events("preflight")) < times:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_pod_on_an_unfit_node_waits_and_starts_when_it_is_fit_again_or_ends_after_its_time(
    pod: FakePod, tmp_path: Path
) -> None:
    pod.take()
    volume = tmp_path / "local"
    volume.mkdir()
    mark = volume / names.UNFIT_MARK
    mark.write_text("bad NIC")
    on_it = {names.ENV_NODE_VOLUME: str(volume)}
    process = pod.start("touch $RUN/launched; exit 1", "worker", "recovery.unfit_wait_s=8", add=on_it)
    until_looked(pod, 1)
    assert process.poll() is None and not (pod.run_dir / "launched").exists()
    mark.unlink()
    assert pod.ends(process)[0] == 1 and (pod.run_dir / "launched").exists()
    (pod.run_dir / "launched").unlink()
    mark.write_text("bad NIC")
    code, output = pod.ends(pod.start("touch $RUN/launched", add=on_it))
    assert code == 1 and "this node is unfit: " in output.splitlines()[-1] and "bad NIC" in output.splitlines()[-1]
    looks = len(pod.events("preflight"))
    process = pod.start("touch $RUN/launched", add=on_it)
    until_looked(pod, looks + 1)
    process.send_signal(signal.SIGTERM)
    assert pod.ends(process)[0] == 75 and not (pod.run_dir / "launched").exists()


def test_of_a_long_reason_kubernetes_keeps_the_beginning_and_what_to_do(pod: FakePod, tmp_path: Path) -> None:
    terminal = Terminal(93, "the same again, " + "ä" * 5000)
    pod.run.write_terminal(terminal)
    words = tmp_path / "termination-log"
    pod.ends(pod.start("exit 0", add={names.ENV_TERMINATION_MESSAGE: str(words)}))
    said = words.read_bytes()
    assert len(said) <= 4096 and b"the same again" in said and b" [...] " in said
    assert record_named_in(said.decode()) == terminal_id(terminal)
