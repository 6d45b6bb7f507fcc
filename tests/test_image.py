"""The Dockerfile, which is not built here, is read: what it copies exists and suffices, what it installs is pinned."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LOCK = (ROOT / "trainer" / "requirements.lock").read_text(encoding="utf-8")
KNOWN = {"ARG", "FROM", "SHELL", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, continued lines joined."""

    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """All of them in order. Comment lines are left out, inside continued instructions too, as Docker does."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = []
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.strip().partition(" ")
        found.append(Instruction(word.upper(), " ".join(rest.split())))
    return found


FILE = instructions(TEXT)


def rests(word: str) -> list[str]:
    return [instruction.rest for instruction in FILE if instruction.word == word]


ARGS = dict(rest.split("=", 1) for rest in rests("ARG") if "=" in rest)


def copies() -> list[tuple[str, str]]:
    """(source in the repository, target in the image)."""
    return [(source, target) for *sources, target in map(str.split, rests("COPY")) for source in sources]


def ignored(path: str) -> bool:
    """What .dockerignore says of a path; the last pattern that matches counts, for all that is below it too."""
    answer = False
    for pattern in filter(None, (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()):
        if pattern.startswith("#"):
            continue
        keeps, pattern = pattern.startswith("!"), pattern.lstrip("!")
        anywhere = pattern.removeprefix("**/")
        parts = Path(path).parts
        matches = (
            any(fnmatch(part, anywhere) for part in parts)
            if pattern != anywhere
            else any(fnmatch("/".join(parts[: end + 1]), pattern) for end in range(len(parts)))
        )
        answer = not keeps if matches else answer
    return answer


def test_every_instruction_is_one_that_this_test_can_read() -> None:
    assert {instruction.word for instruction in FILE} <= KNOWN
    assert [rest for rest in rests("COPY") if rest.startswith("-")] == []


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    assert [source for source, _ in copies() if not (ROOT / source).exists() or ignored(source)] == []


def test_only_our_two_packages_and_the_lock_are_copied() -> None:
    assert [source for source, _ in copies()] == ["trainer/requirements.lock", "holdfast", "trainer"]
    for path in ("infra/rules/plugin.py", "tests/test_image.py", ".git/config", ".venv/bin/python", "dist/k8s"):
        assert ignored(path), path
    assert ignored("holdfast/__pycache__/cli.cpython-311.pyc")
    assert not ignored("holdfast/config/profiles/cpu-test.yaml")


def test_what_is_copied_is_enough_to_start_a_supervisor(tmp_path: Path) -> None:
    for source in ("holdfast", "trainer"):
        shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "trainer.supervisor", "--help"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "worker" in ended.stdout and "control" in ended.stdout
    assert "PYTHONPATH=/opt/holdfast" in rests("ENV")[0]
    assert dict(copies())["trainer"] == "trainer" and "/opt/holdfast" in rests("WORKDIR")


def test_the_base_is_a_numbered_cuda_13_on_ubuntu_24_04() -> None:
    (base,) = rests("FROM")
    resolved = re.sub(r"\$\{(\w+)\}", lambda name: ARGS[name[1]], base)
    assert resolved == "nvidia/cuda:13.0.2-base-ubuntu24.04"
    assert ARGS["PYTHON_VERSION"] == "3.12"


def test_nothing_is_called_latest() -> None:
    assert [rest for _, rest in FILE if "latest" in rest] == []


@pytest.mark.parametrize("name", sorted(ARGS))
def test_every_argument_is_a_pin_and_is_used(name: str) -> None:
    assert re.fullmatch(r"\d+(\.\d+)+|[0-9A-F]{40}", ARGS[name])
    assert f"${{{name}}}" in TEXT


def test_every_variable_of_a_command_is_an_argument_or_made_there() -> None:
    for command in [*rests("RUN"), *rests("FROM")]:
        made = set(re.findall(r"(?:^|\s)([a-z_]+)=", command))
        assert set(re.findall(r"\$\{(\w+)\}", command)) <= set(ARGS) | made, command


def test_python_packages_come_from_the_lock_with_their_hashes_alone() -> None:
    installs = [command for command in rests("RUN") if "pip install" in command]
    assert len(installs) == 1
    for option in ("--require-hashes", "--no-deps", "--only-binary :all:", "--requirement /tmp/requirements.lock"):
        assert option in installs[0]
    assert ("trainer/requirements.lock", "/tmp/requirements.lock") in copies()


def test_the_cuda_of_the_base_is_the_one_that_torch_was_built_with() -> None:
    found = re.search(r"^nvidia-cuda-runtime==(\S+)", LOCK, flags=re.MULTILINE)
    assert found is not None
    assert Version(found[1]).release[:2] == Version(ARGS["CUDA_VERSION"]).release[:2]


def test_what_is_downloaded_is_verified_before_it_is_unpacked() -> None:
    (efa,) = [command for command in rests("RUN") if "curl --fail" in command]
    assert "--fail" in efa and "http:" not in efa
    order = [
        efa.index(part) for part in ("curl", "gpg --batch --import", "--verify", "VALIDSIG", "tar ", "./efa_installer")
    ]
    assert order == sorted(order)


def test_the_installer_leaves_kernel_limits_and_devices_to_the_node() -> None:
    assert "./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify" in " ".join(rests("RUN"))


def test_the_plugin_of_nccl_is_found() -> None:
    assert "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/ofi-nccl/lib:" in rests("ENV")[0]


def test_package_lists_and_archives_do_not_stay_in_a_layer() -> None:
    for command in rests("RUN"):
        if "apt-get" in command:
            assert "rm -rf" in command and "/var/lib/apt/lists/*" in command
        if "apt-get install" in command:
            assert "--no-install-recommends" in command


def test_the_image_itself_does_not_ask_for_root_and_says_where_pods_do() -> None:
    assert rests("USER") == ["10001:10001"]
    assert "IPC_LOCK" in TEXT and "k8s/pods.py" in TEXT
    assert '"runAsUser": 0' in (ROOT / "k8s" / "pods.py").read_text(encoding="utf-8")
