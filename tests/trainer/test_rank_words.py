"""The command line of a rank: help and wrong words end as those of any other command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("word", "code", "says"), [("--help", 0, "--run-dir"), ("--wrong", 2, "required: --config")])
def test_help_ends_with_0_and_wrong_words_with_2_and_neither_with_a_traceback(word: str, code: int, says: str) -> None:
    command = [sys.executable, "-m", "trainer", word]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code and says in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
