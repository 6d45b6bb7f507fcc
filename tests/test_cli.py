"""The command line as a process: exit codes, one message for bad input, no stack trace, quick answers."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import cli
from holdfast.config import profile_names

ROOT = Path(__file__).parents[1]
NO_ROOM = "the output, or a file of this command, cannot be written: no space left on device"


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("profile", profile_names())
def test_check_says_what_follows_from_a_profile(profile: str) -> None:
    done = holdfast("check", "--profile", profile)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("nodes", "world size", "model", "batch", "checkpoint", "staging", "timeouts", "limits"):
        assert f"\n{name} " in done.stdout, name


def test_check_prints_the_numbers_of_the_article_s_run() -> None:
    text = holdfast("check", "--profile", "llama3-8b-p5x2").stdout
    for fact in ("8,030,261,248 parameters", "96.4 GB", "48.2 GB of host memory", "411 s at 234 MB/s (computed)"):
        assert fact in text


def test_check_shows_every_problem_and_ends_with_2() -> None:
    done = holdfast("check", "--profile", "cpu-test", "--set", "cluster.nodes=0", "--set", "model.kv_heads=3")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "profile cpu-test: 2 problems"
    assert [line.split(" = ")[0].strip(" -") for line in lines[1:]] == ["cluster.nodes", "model.kv_heads"]


def test_check_all_judges_every_profile() -> None:
    done = holdfast("check", "--all")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[name, "ok"] for name in profile_names()]
    broken = holdfast("check", "--all", "--set", "training.steps=0")
    assert broken.returncode == 2
    assert broken.stderr.count("training.steps = '0'") == len(profile_names())


def test_check_prints_the_schema() -> None:
    assert json.loads(holdfast("check", "--schema").stdout)["title"] == "RunConfig"


def test_check_explains_each_variable_of_the_pods() -> None:
    text = holdfast("check", "--profile", "cpu-demo", "--launch").stdout
    assert "python -m trainer.supervisor control" in text
    variables = [line for line in text.splitlines() if line.startswith("  ") and "=" in line.split("#")[0]]
    assert len(variables) > 10
    assert all("  # " in line for line in variables if "trainer.supervisor" not in line)


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["check"], ["check", "--nonsense"], ["check", "--all", "--schema"], ["check", "--profile"]],
)
def test_a_bad_option_ends_with_2_and_the_usage(arguments: list[str]) -> None:
    done = holdfast(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: holdfast")
    assert "Traceback" not in done.stderr


def test_help_lists_the_commands_that_exist() -> None:
    done = holdfast("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        if (ROOT / "holdfast" / "commands" / f"{name}.py").exists():
            assert re.search(rf"^    {name}\s", done.stdout, flags=re.MULTILINE), name


def test_a_reader_that_goes_away_is_no_stack_trace() -> None:
    command = f"{sys.executable} -m holdfast check --schema | head -c 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize("words", ["check --profile cpu-test", "check --schema"])  # less and more than a buffer holds
def test_output_for_which_there_is_no_room_is_one_line_and_code_1(words: str) -> None:
    command = f"{sys.executable} -m holdfast {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"{NO_ROOM}\n")


def fails_for_lack_of_room(of: str | None) -> Callable[[object], int]:
    def fails(words: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", of)

    return fails


def test_a_failure_that_is_not_of_the_output_is_not_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_run", fails_for_lack_of_room("/fsx/runs/a/COMPLETE"))
    with pytest.raises(OSError, match="COMPLETE"):
        cli.main(["check"])


def test_output_goes_on_after_a_failure_that_may_be_of_another_file(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_run", fails_for_lack_of_room(None))  # write() and fsync() name no file
    assert cli.main(["check"]) == 1
    print("afterwards", flush=True)
    assert capfd.readouterr() == ("afterwards\n", f"{NO_ROOM}\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_half_a_character_is_printed_as_its_number(stream: str) -> None:
    """JSON may hold a lone surrogate, and so may an event log: no report is to end by it."""
    code = (
        "import sys; from holdfast import cli\n"
        f"cli._run = lambda words: print('a\\udcffb', file=sys.{stream}) or 0\n"
        "sys.exit(cli.main(['check']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "a\\udcffb\n")


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["check", "--schema", "--set", "seed=1"], ["--set"]),
        (["check", "--schema", "--launch"], ["--launch"]),
        (["check", "--schema", "--launch", "--set", "seed=1"], ["--set", "--launch"]),
        (["check", "--all", "--launch"], ["--launch"]),
        (["plan", "--profile", "cpu-demo", "--json", "--explain"], ["--explain"]),
        (["plan", "--profile", "cpu-demo", "--force"], ["--force"]),
        (["run", "--profile", "cpu-demo", "--out", "/nonexistent/out", "--yes"], ["--yes"]),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    words: list[str], keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(" = ")[0].removeprefix("  - ") for line in said.err.splitlines()[1:]] == keys


@pytest.mark.parametrize("command", [["status"], ["report"], ["checkpoint", "ls"], ["resume"]])
def test_a_folder_with_a_name_that_is_too_long_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "x" * 300]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[1].startswith("  - DIR = 'xxx")


def test_ctrl_c_ends_with_130_and_without_a_stack_trace(tmp_path: Path) -> None:
    pipe = tmp_path / "profile.yaml"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "holdfast", "check", "--profile", str(pipe)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores it, and what that starts in turn.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    writer = _open_once_read(pipe)  # while it is open, the command waits for the rest of its file
    try:
        errors = _interrupt(process)
    finally:
        process.kill()
        os.close(writer)
    assert (process.returncode, errors) == (130, "interrupted\n")


def _interrupt(process: subprocess.Popen[str]) -> str:
    """Its error output. One signal can arrive between Python's last look for signals and the call that then waits."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=3)[1]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it went on after ten signals")


def _open_once_read(pipe: Path) -> int:
    deadline = time.monotonic() + 30
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < deadline, "nobody opened the pipe"
            time.sleep(0.02)


def test_check_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "cdk8s", "aws_cdk", "numpy", "rich")
    code = (
        "import sys; from holdfast.cli import main; main(['check', '--profile', 'cpu-demo']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
