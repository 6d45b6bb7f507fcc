"""Set-up from nothing: a second run does nothing, an interrupted one is repaired, a changed one is completed.

Real virtual environments, real pip, no network: the only package is an empty wheel made here.
"""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bootstrap.__main__ import READY
from tests.empty_wheel import write_wheel

ROOT = Path(__file__).parents[1]
CODE = """
import os, pathlib, sys
from bootstrap.__main__ import main
sys.exit(main(os.environ, pathlib.Path(sys.argv[1])))
"""


class Checkout:
    """A folder that is set up like the repository."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        wheels = root / ".cache" / "wheels"
        wheels.mkdir(parents=True)
        for version in ("0.6.0", "0.6.1"):
            write_wheel(wheels, version)
            # Stands for the wheel that an earlier set-up on an old glibc has downloaded and retagged.
            short, machine = "cp{}{}".format(*sys.version_info[:2]), os.uname().machine
            kept = wheels / f"nvidia_resiliency_ext-{version}-{short}-{short}-linux_{machine}.whl"
            kept.write_bytes((wheels / f"nvidia_resiliency_ext-{version}-py3-none-any.whl").read_bytes())
        self.require("0.6.0")
        # PIP_USER: a setting that people have, and that pip refuses to follow inside a virtual environment.
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_USER": "1", "PIP_CONFIG_FILE": os.devnull}
        kept_out = ("TORCH_INDEX", "HOLDFAST_VENV", "PYTHON")
        self.environment = {name: value for name, value in os.environ.items() if name not in kept_out}
        self.environment |= {**offline, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}

    def require(self, version: str) -> None:
        (self.root / "requirements.txt").write_text(f"nvidia-resiliency-ext=={version}  # the trainer\n")

    def start(self, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, str(self.root)]
        return subprocess.Popen(
            command,
            env={**self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def set_up(self, **more: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(**more)
        output, _ = process.communicate(timeout=100)
        return process.returncode, output

    def installed(self) -> str:
        code = "from importlib.metadata import version; print(version('nvidia-resiliency-ext'))"
        return subprocess.check_output([self.venv / "bin" / "python", "-I", "-c", code], text=True).strip()

    def made_at(self) -> int:
        return (self.venv / "pyvenv.cfg").stat().st_ino


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_first_run_makes_the_environment_and_a_second_does_nothing(checkout: Checkout) -> None:
    code, output = checkout.set_up()
    assert (code, output.splitlines()[-1]) == (0, "setup: ready")
    assert "nvidia-resiliency-ext: glibc" in output
    assert checkout.installed() == "0.6.0"
    made = checkout.made_at()
    began = time.monotonic()
    assert checkout.set_up() == (0, "")
    assert time.monotonic() - began < 5
    assert checkout.made_at() == made

    # The command finds its packages from any folder, and Node beside itself.
    (checkout.root / "holdfast").mkdir()
    (checkout.root / "holdfast" / "__main__.py").write_text(
        "import os, sys; print(os.environ['JSII_NODE'], sys.argv[1:])"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JSII_NODE")}
    command = [str(checkout.venv / "bin" / "holdfast"), "a b", "c"]
    said = subprocess.check_output(command, cwd="/", env=environment, text=True)
    assert said == f"{checkout.venv}/bin/node ['a b', 'c']\n"


@pytest.mark.slow
def test_changed_requirements_are_installed_on_top(checkout: Checkout) -> None:
    assert checkout.set_up()[0] == 0
    made = checkout.made_at()
    checkout.require("0.6.1")
    assert checkout.set_up()[0] == 0
    assert (checkout.installed(), checkout.made_at()) == ("0.6.1", made)

    # What cannot be had is an error, and costs nothing that was there.
    checkout.require("9.9")
    code, output = checkout.set_up()
    assert code == 1 and "setup: this command ended with 1" in output
    assert not (checkout.venv / READY).exists()
    checkout.require("0.6.1")
    assert checkout.set_up()[0] == 0
    assert (checkout.installed(), checkout.made_at()) == ("0.6.1", made)

    # An environment from before the stamp is accepted.
    (checkout.venv / READY).unlink()
    assert checkout.set_up()[0] == 0
    assert checkout.made_at() == made


@pytest.mark.parametrize("moment", ["setup: Python", pytest.param("setup: installing", marks=pytest.mark.slow)])
def test_a_set_up_that_is_killed_leaves_no_stamp_and_the_next_repairs_it(checkout: Checkout, moment: str) -> None:
    process = checkout.start()
    assert process.stdout is not None
    assert any(line.startswith(moment) for line in process.stdout)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert not (checkout.venv / READY).exists()
    code, output = checkout.set_up()
    assert code == 0, output
    assert "is made again: an earlier set-up was cut short" in output
    assert checkout.installed() == "0.6.0"


def test_a_second_set_up_waits_for_the_first(checkout: Checkout) -> None:
    with (checkout.root / ".cache" / "setup.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = checkout.start(PYTHON="/nonexistent/python")
        assert process.stdout is not None
        assert process.stdout.readline() == "setup: another set-up is running; waiting for it\n"
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "does not run as Python 3" in output


def test_a_folder_that_is_no_environment_is_left_alone(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "thesis.txt").write_text("keep me")
    code, output = checkout.set_up()
    assert code == 1 and "is not a virtual environment; move it away" in output
    assert (checkout.venv / "thesis.txt").read_text() == "keep me"


@pytest.mark.parametrize("path", sorted((ROOT / "bootstrap").glob("*.py")), ids=lambda path: path.name)
def test_the_bootstrap_is_readable_for_an_old_python_which_can_then_say_so(path: Path) -> None:
    source = path.read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__ import annotations" not in source


def test_every_door_of_the_makefile_has_a_line_in_its_help() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    helped = subprocess.check_output(["make", "--no-print-directory", "help"], cwd=ROOT, text=True)
    assert {line.split()[1] for line in helped.splitlines()} == set(phony) - {"FORCE"}


def test_continuous_integration_runs_the_documented_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")
