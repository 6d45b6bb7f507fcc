"""Run a program in a mount namespace of its own, where it may mount small file systems without being root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def _possible() -> bool:
    """Whether a harmless mount works."""
    probe = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0


needed = pytest.mark.skipif(
    not _possible(), reason="a container without user namespaces: nobody may mount a file system of his own here"
)
"""For tests that call `run`."""


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    """What `command` prints, started in the repository's root. Fails the test if it fails."""
    done = subprocess.run(
        [*_UNSHARE, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
