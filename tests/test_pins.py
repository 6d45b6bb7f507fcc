"""What is installed is pinned, and the image installs what the tests ran with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bootstrap.interpreter import NVRX
from bootstrap.lock import trainer_part

ROOT = Path(__file__).parents[1]
REQUIREMENTS = (ROOT / "requirements.txt").read_text()
LOCK = (ROOT / "trainer" / "requirements.lock").read_text()


def pins(text: str) -> dict[str, str]:
    """Name -> version of every requirement. Fails on one that is not pinned exactly."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        requirement = line.partition("#")[0].partition(" \\")[0].strip()
        if not requirement or requirement.startswith("--hash"):
            continue
        parsed = Requirement(requirement)
        (specifier,) = parsed.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, line
        found[canonicalize_name(parsed.name)] = specifier.version
    return found


def test_every_requirement_is_pinned_exactly() -> None:
    assert len(pins(REQUIREMENTS)) > 15


def test_the_lock_has_the_versions_of_the_trainer_part() -> None:
    wanted, locked = pins(trainer_part(REQUIREMENTS)), pins(LOCK)
    differing = {name: (version, locked.get(name)) for name, version in wanted.items() if locked.get(name) != version}
    assert differing == {}, "run `make lock`"


def test_every_locked_package_has_a_hash() -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK)
    packages = [block for block in blocks if "==" in block.splitlines()[0]]
    assert len(packages) == len(pins(LOCK)) > 30
    assert [block.splitlines()[0] for block in packages if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("text", [REQUIREMENTS, LOCK], ids=["requirements.txt", "requirements.lock"])
def test_no_index_and_no_address_is_written_down(text: str) -> None:
    for word in ("index-url", "find-links", "://", "@ "):
        assert word not in text, word


def test_the_lock_is_for_cuda() -> None:
    assert {"nvidia-nccl-cu13", "triton"} <= set(pins(LOCK))


def test_the_locked_nccl_can_be_aborted_in_process() -> None:
    # NVRx 0.6.0: in-process restart needs NCCL below 2.28.3 or from 2.28.9.
    nccl = Version(next(version for name, version in pins(LOCK).items() if name.startswith("nvidia-nccl")))
    assert nccl < Version("2.28.3") or nccl >= Version("2.28.9")


def test_only_packages_without_wheels_elsewhere_are_for_linux_alone() -> None:
    parsed = [Requirement(line) for line in REQUIREMENTS.splitlines() if line and not line.startswith("#")]
    marked = {requirement.name: str(requirement.marker) for requirement in parsed if requirement.marker}
    assert marked == dict.fromkeys(["torch", NVRX, "transformers"], 'sys_platform == "linux"')


def test_node_tools_are_pinned_exactly() -> None:
    tools = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert set(tools) == {"aws-cdk", "cdk8s-cli"}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in tools.values())
