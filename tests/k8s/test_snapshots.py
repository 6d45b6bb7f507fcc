"""Every manifest of the article's profile and of the cheapest one, as it was read and agreed to.

A change here is what the next `kubectl apply` does. Read it, then run this file with --snapshot-update.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion


@pytest.mark.parametrize("folder", ["platform", "job"])
@pytest.mark.parametrize("profile", ["llama3-8b-p5x2", "gpt2-g5x2"])
def test_the_manifests_are_those_that_were_agreed_to(
    synthesized: dict[str, Any], snapshot: SnapshotAssertion, profile: str, folder: str
) -> None:
    synth = synthesized[profile]
    files = synth.platform_files if folder == "platform" else synth.files
    assert {name: _without_hashes(text) for name, text in files.items() if name != "10-configmap.yaml"} == snapshot


def _without_hashes(text: str) -> str:
    """The job's name follows from the whole config, which has tests of its own."""
    return re.sub(r"(llama3-8b-p5x2|gpt2-g5x2)-[0-9a-f]{8}\b", r"\1-HASH", text)
