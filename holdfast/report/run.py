"""A run as the report needs it: what its logs say, and the config that it was started with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from holdfast.config import names
from holdfast.config.yaml_text import parse
from holdfast.goodput.ledger import Ledger
from holdfast.goodput.timeline import Timeline


@dataclass(frozen=True)
class ReportedRun:
    """One run. `name` is unique within a report."""

    name: str
    timeline: Timeline
    ledger: Ledger
    config_text: str = ""
    """Its run.yaml, empty if there is none."""

    def config(self) -> Mapping[str, str]:
        """Dotted key -> value, as text. Empty if run.yaml is missing or is no YAML: a report does not judge a config,
        and one that another version wrote must still be shown."""
        try:
            loaded = parse(self.config_text) if self.config_text else None
        except yaml.YAMLError:
            return {}
        return dict(_flat(loaded)) if isinstance(loaded, dict) else {}

    def versions(self) -> Mapping[str, str]:
        """Library -> version, as the ranks logged them; several where ranks or attempts differ. Empty if none did."""
        found: dict[str, Counter[str]] = {}
        for event in self.timeline.named("import"):
            for entry in filter(None, event.text("versions").split(", ")):
                library, _, version = entry.rpartition(" ")
                found.setdefault(library, Counter())[version] += 1
        return {library: ", ".join(sorted(versions)) for library, versions in found.items()}


def reported_run(name: str, run_dir: Path, timeline: Timeline, ledger: Ledger) -> ReportedRun:
    """The run in run_dir, whose logs have been read and accounted."""
    try:
        text = (run_dir / names.RUN_YAML).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return ReportedRun(name, timeline, ledger, text)


def distinct_names(run_dirs: Sequence[Path], asked: Sequence[Path]) -> list[str]:
    """A name for each run: its own, or, where two runs are called the same, the end of the path that the person named,
    as long as it must be to tell them apart. A folder that was named twice gets a number.
    """
    own = [run_dir.resolve().name for run_dir in run_dirs]
    if len(set(own)) == len(own):
        return own
    parts = [path.absolute().parts for path in asked]
    longest = max(map(len, parts))
    ends = [["/".join(path[-length:]) for path in parts] for length in range(1, longest + 1)]
    wanted = next((names for names in ends if len(set(names)) == len(set(parts))), ends[-1])
    return [
        name if wanted.count(name) == 1 else f"{name} ({wanted[: index + 1].count(name)})"
        for index, name in enumerate(wanted)
    ]


def _flat(mapping: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            pairs += _flat(value, f"{above}{key}.")
        else:
            pairs.append((f"{above}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return pairs
