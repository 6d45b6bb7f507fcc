"""The shim keeps every process of a pod, and its command sees what PID 1 of a container sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.local.processes import SHIM, TOKEN_VARIABLE, PodProcess
from tests.local.toys import until

# Leaves its session and its parent behind, as a daemon does, and forgets its environment.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.execve(sys.executable, ["python", "-S", "-c", "import time; time.sleep(60)"], {})
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.01)
"""

Start = Callable[..., PodProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[PodProcess] = []

    def begin(*argv: str) -> PodProcess:
        environment = {"PATH": os.environ["PATH"], TOKEN_VARIABLE: f"{os.getpid()}.pod-{len(started)}"}
        process = PodProcess("pod", argv, environment, tmp_path, tmp_path / "log", [])
        started.append(process)
        return process

    yield begin
    for process in started:
        process.close()
        process.wait(5)


def code_of(process: PodProcess) -> int:
    return until(lambda: None if (code := process.exit_code()) is None else (code,))[0]


def daemon_pid(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139), ("kill -15 $$", 143)],
)
def test_exit_codes_and_deaths_by_signal_are_passed_on(start: Start, script: str, code: int) -> None:
    assert code_of(start("sh", "-c", script)) == code


def test_a_command_that_does_not_exist_ends_with_127_and_says_so(start: Start, tmp_path: Path) -> None:
    assert code_of(start("no-such-command")) == 127
    assert "cannot start 'no-such-command': No such file or directory" in (tmp_path / "log").read_text()


def test_sigterm_reaches_the_command_even_at_once_after_the_start(start: Start) -> None:
    for delay_s in (0.0, 0.0, 0.0, 0.3):
        process = start("sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.02; done")
        time.sleep(delay_s)
        process.terminate()
        assert code_of(process) in ((75,) if delay_s else (75, 143))


def test_the_command_has_default_signals_and_no_control_socket(start: Start, tmp_path: Path) -> None:
    script = (
        "import os, signal; print([signal.getsignal(n).name for n in (1, 13, 15, 17)], signal.pthread_sigmask(0, []))"
    )
    script += (
        "; files = os.listdir('/proc/self/fd'); print(os.readlink('/proc/self/fd/0'), sorted(files)[:3], len(files))"
    )
    assert code_of(start(sys.executable, "-S", "-c", script)) == 0
    handlers, files = (tmp_path / "log").read_text().splitlines()
    # Python itself ignores SIGPIPE (13).
    assert handlers == "['SIG_DFL', 'SIG_IGN', 'SIG_DFL', 'SIG_DFL'] set()"
    assert files == "/dev/null ['0', '1', '2'] 4"  # 3: the listing itself


def test_the_command_adopts_orphans_as_pid_1_does(start: Start, tmp_path: Path) -> None:
    script = "import os, time\nif os.fork() == 0:\n if os.fork() == 0:\n  time.sleep(0.2); os._exit(5)\n os._exit(0)\n"
    script += "os.wait(); print(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert code_of(start(sys.executable, "-S", "-c", script)) == 0
    assert (tmp_path / "log").read_text() == "5\n"


def test_what_the_command_leaves_behind_is_killed_when_it_ends(start: Start, tmp_path: Path) -> None:
    process = start(sys.executable, "-S", "-c", DAEMON, str(tmp_path / "pid"))
    pid = daemon_pid(tmp_path / "pid")
    assert code_of(process) == 0
    assert not is_alive(pid)


def test_kill_reaches_a_daemon_that_left_session_and_environment(start: Start, tmp_path: Path) -> None:
    process = start(sys.executable, "-S", "-c", DAEMON + "time.sleep(60)", str(tmp_path / "pid"))
    pid = daemon_pid(tmp_path / "pid")
    process.kill()
    assert code_of(process) == 137
    assert not is_alive(pid)


def test_everything_dies_when_the_runner_is_gone(start: Start, tmp_path: Path) -> None:
    process = start(sys.executable, "-S", "-c", DAEMON + "time.sleep(60)", str(tmp_path / "pid"))
    pid = daemon_pid(tmp_path / "pid")
    process.close()
    until(lambda: not is_alive(pid) and not is_alive(process.shim_pid), 3)


def test_the_pod_dies_with_a_shim_that_is_killed(start: Start, tmp_path: Path) -> None:
    process = start("sh", "-c", "(setsid sleep 60 & echo $! >pid); exec sleep 60")
    pid = daemon_pid(tmp_path / "pid")
    until(lambda: process.messages() and process.main_pid)
    os.kill(process.shim_pid, signal.SIGKILL)
    assert code_of(process) == 137
    assert not is_alive(process.main_pid or 0) and not is_alive(pid)


def test_a_shim_that_does_not_answer_is_killed_with_its_tree(start: Start) -> None:
    process = start("sleep", "60")
    until(lambda: process.messages() and process.main_pid)
    os.kill(process.shim_pid, signal.SIGSTOP)
    process.kill_directly()
    assert code_of(process) == 137
    until(lambda: not is_alive(process.main_pid or 0), 3)


def test_a_probe_answers_with_its_code_and_a_slow_one_is_ended(start: Start) -> None:
    process = start("sleep", "60")
    answers: dict[int, int] = {}
    for request, script in enumerate(("exit 0", "exit 3", "sleep 50")):
        process.probe(request, ["sh", "-c", script], 0.3)

    def all_answered() -> bool:
        answers.update({message["exec"]: message["code"] for message in process.messages() if "exec" in message})
        return len(answers) == 3

    until(all_answered)
    assert answers == {0: 0, 1: 3, 2: 124}
    assert process.exit_code() is None


def test_a_shim_costs_less_than_50_ms_of_processor_time() -> None:
    durations = []
    for _ in range(5):
        # End-of-file on descriptor 0 from the start: it starts up and ends.
        shim = subprocess.Popen([sys.executable, "-I", "-S", str(SHIM), "pod"], stdin=subprocess.DEVNULL)
        usage = os.wait4(shim.pid, 0)[2]
        shim.returncode = 0
        durations.append(usage.ru_utime + usage.ru_stime)
    assert min(durations) < 0.05
