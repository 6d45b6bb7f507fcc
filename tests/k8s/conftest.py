"""All profiles synthesized once by the real entry point, in parallel; and synthesis in this process for variants."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml

from holdfast.config import load_profile, profile_names
from k8s.main import ROOT, use_bundled_node
from tests.k8s.job_view import Job, Object

OUTPUTS = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemDnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    "FileSystemMountName": "abcdefgh",
}
"""Of a storage stack."""
IMAGE = f"image=registry.example/trainer@sha256:{'0123456789abcdef' * 4}"


@dataclass(frozen=True)
class Synth:
    """Result of one run of k8s/main.py."""

    folder: Path
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def files(self) -> dict[str, str]:
        """File name -> content, of job/."""
        return {path.name: path.read_text() for path in sorted(self.folder.iterdir())}

    @property
    def platform(self) -> Path:
        """The folder platform/."""
        return self.folder.with_name("platform")

    @property
    def platform_files(self) -> dict[str, str]:
        """File name -> content, of platform/."""
        return {path.name: path.read_text() for path in sorted(self.platform.iterdir())}

    @cached_property
    def _job(self) -> list[Object]:
        return [item for text in self.files.values() for item in yaml.safe_load_all(text)]

    @cached_property
    def _platform(self) -> list[Object]:
        files = self.platform_files.items()
        return [item for name, text in files if name.endswith(".yaml") for item in yaml.safe_load_all(text)]

    @property
    def job_objects(self) -> list[Object]:
        """What job/ holds; a copy."""
        return copy.deepcopy(self._job)

    @property
    def platform_objects(self) -> list[Object]:
        """What platform/ holds; a copy."""
        return copy.deepcopy(self._platform)

    @property
    def objects(self) -> list[Object]:
        """Everything; a copy, for tests that break it."""
        return self.job_objects + self.platform_objects


def run_main(dist: Path, environment: Mapping[str, str], cwd: Path = ROOT) -> Synth:
    """Run k8s/main.py as a user would, with nothing of HOLDFAST_* inherited."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "CDK8S_"))}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "k8s" / "main.py")],
        env={**clean, "HOLDFAST_DIST": str(dist), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seconds = time.monotonic() - start
    folder = dist / "k8s" / Path(environment.get("HOLDFAST_PROFILE", "none")).stem / "job"
    return Synth(folder, done.returncode, done.stdout, done.stderr, seconds)


@pytest.fixture(scope="session")
def main() -> Callable[..., Synth]:
    """run_main, for tests that need other inputs than the profiles as they are."""
    return run_main


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cdk-outputs.json of a deployment of every profile."""
    path = tmp_path_factory.mktemp("deployed") / "cdk-outputs.json"
    stacks = {f"{profile}-storage": OUTPUTS for profile in profile_names()}
    path.write_text(
        json.dumps({f"{profile}-cluster": {"ClusterName": profile} for profile in profile_names()} | stacks)
    )
    return path


@pytest.fixture(scope="session")
def synthesized(tmp_path_factory: pytest.TempPathFactory, deployed: Path) -> dict[str, Synth]:
    """Profile -> what k8s/main.py wrote for it, after a deployment and with an image of one's own."""
    dist = tmp_path_factory.mktemp("dist")

    def run(profile: str) -> Synth:
        return run_main(dist, {"HOLDFAST_PROFILE": profile, "HOLDFAST_OUTPUTS": str(deployed), "HOLDFAST_SET": IMAGE})

    with ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(run, profile_names())
    made = dict(zip(profile_names(), results, strict=True))
    failed = {profile: synth.stderr for profile, synth in made.items() if synth.code}
    assert not failed, failed
    return made


@pytest.fixture(scope="session")
def render() -> Callable[..., list[Object]]:
    """(profile, *overrides) -> objects, in this process: 20 ms instead of a second."""
    use_bundled_node()
    from k8s.job import manifests

    def rendered(profile: str, *overrides: str) -> list[Object]:
        return list(manifests(load_profile(profile, overrides)).values())

    return rendered


@pytest.fixture(scope="session")
def jobs(synthesized: dict[str, Synth]) -> dict[str, Job]:
    """Profile -> its job, for tests that only look."""
    return {profile: Job(synth.objects) for profile, synth in synthesized.items()}
