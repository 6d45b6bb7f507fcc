"""Run a program in a mount namespace of its own, where it may mount small file systems without being root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> str:
    """What `command` prints, started in the repository's root. Fails the test if it fails.

    Skips the test where the machine lets nobody have such a namespace (a container without user namespaces): asked
    with a harmless mount first, so that no failure of the command itself is taken for that.
    """
    probe = subprocess.run(
        [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, timeout=20, check=False
    )
    if probe.returncode != 0:
        # A container without user namespaces. A failure of the command itself is none of this: it fails the test below.
        pytest.skip(f"this machine lets nobody mount a file system of his own: {probe.stderr.strip()[-100:]}")
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
