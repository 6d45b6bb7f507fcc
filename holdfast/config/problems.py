"""Problems with a config, said so that the reader can mend them: the dotted key, the value, why, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r"hf_\w{8,}")
"""Of the Hugging Face hub. One that was written where a name belongs must not be shown in the refusal."""
EXIT_BAD_CONFIG = 2
"""Exit code of every command-line entry (holdfast, app.py, k8s/main.py) for bad input. A pod uses 78 instead."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `key` is dotted, `got` the value as given, `fix` what to write instead."""

    key: str
    got: Any
    why: str
    fix: str

    def __str__(self) -> str:
        got = _TOKEN.sub("hf_***", repr(self.got))
        if len(got) > 120:
            got = got[:117] + "..."
        fix = f"{self.fix[:1].upper()}{self.fix[1:]}"
        return f"{self.key} = {got}: {self.why}. {fix}{'' if fix.endswith(('.', '?')) else '.'}"


class ConfigError(Exception):
    """Bad input. Carries every problem found, not the first only."""

    def __init__(self, problems: Iterable[Problem], source: str = "config") -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.source = source
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{self.source}: {count} problem{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  - {problem}" for problem in self.problems)])
