"""Set-up on machines of all kinds: which Python is taken, what an environment is worth, how NVRx gets in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap import environment
from bootstrap.__main__ import UNFINISHED, why_remake
from bootstrap.environment import Plan
from bootstrap.interpreter import MACHINES, Interpreter, SetupError, choose, nvrx_way, probe
from tests.empty_wheel import write_wheel

ROOT = Path(__file__).parents[1]
LINUX = Interpreter("python", (3, 12), "Linux", "x86_64", (2, 39), ())


def fake_python(path: Path, version: tuple[int, int], lacks: list[str] | None = None) -> str:
    """A program that answers like an interpreter of some version."""
    answer = json.dumps([str(path), version, "Linux", "x86_64", "glibc 2.36", lacks or []])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "state, reason",
    [
        ("sound", ""),
        ("unfinished", "an earlier set-up was cut short"),
        ("dangling", "its Python does not run"),
        ("old", "it has Python 3.10"),
        ("no pip", "it has no pip"),
        ("moved", "it was moved here from /elsewhere/.venv"),
        ("other index", "another TORCH_INDEX was asked for"),
        ("other python", "another Python version was asked for"),
    ],
)
def test_an_environment_is_built_upon_only_if_it_is_sound(state: str, reason: str, tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    version = (3, 10) if state == "old" else (3, 12)
    fake_python(venv / "bin" / "python", version, ["pip"] if state == "no pip" else [])
    if state == "dangling":
        (venv / "bin" / "python").unlink()
    if state == "unfinished":
        (venv / UNFINISHED).touch()
    wanted = fake_python(tmp_path / "python3.11", (3, 11)) if state == "other python" else None
    plan = Plan(tmp_path, venv, wanted, "https://b" if state == "other index" else None)
    stamp = {"venv": "/elsewhere/.venv" if state == "moved" else str(venv), "torch_index": "https://a"}
    assert why_remake(plan, stamp) == reason


def test_the_first_python_on_the_path_that_will_do_is_chosen(tmp_path: Path) -> None:
    shims, real = tmp_path / "shims", tmp_path / "bin"
    shims.mkdir()
    (shims / "python3.12").write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    (shims / "python3.12").chmod(0o755)
    fake_python(shims / "python3", (3, 10))
    fake_python(real / "python3.12", (3, 12), ["ensurepip"])
    wanted = fake_python(real / "python3.11", (3, 11))
    assert choose(None, f"{shims}:{real}").path == wanted
    assert choose(fake_python(tmp_path / "mine", (3, 12)), "").version == (3, 12)


def test_a_machine_without_a_suitable_python_is_told_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    wanted = fake_python(tmp_path / "python3", (3, 13))
    with pytest.raises(SetupError) as refusal:
        choose(wanted, "")
    assert f"  {wanted} is version 3.13\n" in str(refusal.value)
    assert "Install one" in str(refusal.value) and "make venv PYTHON=" in str(refusal.value)
    broken = fake_python(tmp_path / "python3.12", (3, 12), ["ensurepip"])
    with pytest.raises(SetupError, match=r"lacks the modules ensurepip .*apt install python3\.12-venv"):
        choose(broken, "")


def test_this_interpreter_answers_for_itself() -> None:
    found = probe(sys.executable)
    assert found is not None
    # Set-up may be started from the environment that it makes again.
    assert not Path(found.path).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
    assert (found.version, found.system, found.machine) == (
        sys.version_info[:2],
        os.uname().sysname,
        os.uname().machine,
    )


@pytest.mark.parametrize(
    "interpreter, way",
    [
        (LINUX, "native"),
        (LINUX._replace(glibc=(2, 40)), "native"),
        (LINUX._replace(glibc=(2, 38)), "retag"),
        (LINUX._replace(glibc=(2, 36), machine="aarch64"), "retag"),
        (LINUX._replace(glibc=(3, 0)), "native"),
        (LINUX._replace(system="Darwin", machine="arm64", glibc=None), "none"),
    ],
)
def test_nvrx_gets_in_by_the_way_that_fits_the_machine_and_it_is_said(interpreter: Interpreter, way: str) -> None:
    chosen, message = nvrx_way(interpreter)
    assert chosen == way
    assert "nvidia-resiliency-ext" in message


@pytest.mark.parametrize(
    "interpreter, words",
    [
        (LINUX._replace(glibc=None), "not glibc"),
        (LINUX._replace(machine="riscv64"), "this is riscv64"),
        (LINUX._replace(system="Windows"), "inside WSL2"),
    ],
)
def test_a_machine_on_which_nothing_will_do_is_refused_before_anything_is_made(
    interpreter: Interpreter, words: str
) -> None:
    with pytest.raises(SetupError, match=words):
        nvrx_way(interpreter)


def commands(monkeypatch: pytest.MonkeyPatch, plan: Plan, interpreter: Interpreter) -> list[list[str]]:
    """What install() would run."""
    ran: list[list[str]] = []
    monkeypatch.setattr(environment, "run", lambda argv, quiet=False: ran.append(argv))
    monkeypatch.setattr(subprocess, "check_output", lambda argv: b"")
    environment.install(plan, interpreter, quiet=True)
    return ran


def test_an_extra_index_for_torch_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    index = "https://download.pytorch.org/whl/cpu"
    (pip,) = commands(monkeypatch, Plan(ROOT, ROOT / ".venv", None, index), LINUX)
    assert pip[-2:] == ["--extra-index-url", index]
    (pip,) = commands(monkeypatch, Plan(ROOT, ROOT / ".venv", None, None), LINUX)
    assert "--extra-index-url" not in pip and "--find-links" not in pip


@pytest.mark.parametrize("machine", MACHINES)
def test_on_an_old_glibc_the_wheel_is_fetched_under_its_own_tag_and_retagged(
    machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("nvidia-resiliency-ext==0.6.0; x\nwheel==0.48.0\n")
    ran: list[list[str]] = []

    def run(argv: list[str], quiet: bool = False) -> None:
        ran.append(argv)
        if "download" in argv:
            folder = Path(argv[argv.index("-d") + 1])
            write_wheel(folder, "0.6.0")
        if "tags" in argv:
            tagged = f"nvidia_resiliency_ext-0.6.0-cp312-cp312-linux_{machine}.whl"
            Path(argv[-1]).rename(Path(argv[-1]).with_name(tagged))

    monkeypatch.setattr(environment, "run", run)
    old = LINUX._replace(glibc=(2, 36), machine=machine)
    folder = environment.retagged_wheels(Plan(tmp_path, tmp_path / ".venv", None, None), old)
    assert [path.name for path in folder.iterdir()] == [f"nvidia_resiliency_ext-0.6.0-cp312-cp312-linux_{machine}.whl"]
    download = " ".join(ran[0])
    for part in (f"--platform manylinux_2_39_{machine}", "--python-version 312", "--no-deps", "--only-binary=:all:"):
        assert part in download
    ran.clear()
    environment.retagged_wheels(Plan(tmp_path, tmp_path / ".venv", None, None), old)
    assert ran == [], "the wheel is kept"
