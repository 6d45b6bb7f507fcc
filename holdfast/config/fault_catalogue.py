"""The fault catalogue: for each kind and phase whether it is allowed, what detects it, and how the run ends.

Its data is fault_catalogue.yaml. It is read when it is asked for: a run without faults never needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from holdfast.config.faults import OF_A_SAVE, OF_A_STEP, OF_AN_ATTEMPT, FaultKind, FaultPhase
from holdfast.config.problems import Problem
from holdfast.config.yaml_text import parse

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig

PATH = Path(__file__).with_name("fault_catalogue.yaml")
End = Literal["bit_equal", "within_tolerance", "terminal", "none"]
Ends = Literal["attempt", "save", "nothing"]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
PHASES: tuple[FaultPhase, ...] = get_args(FaultPhase)
SECTION_LIMITS: Mapping[str, str] = {
    "start_up": "recovery.init_section_timeout_s",
    "restore": "recovery.restore_section_timeout_s",
    **dict.fromkeys(OF_A_STEP, "recovery.step_section_timeout_s"),
    **dict.fromkeys(OF_A_SAVE, "recovery.checkpoint_section_timeout_s"),
}
"""Phase -> limit of the rank monitor's section that it lies in."""


@dataclass(frozen=True)
class Detector:
    """Who notices. limits: dotted keys of the config; `section` stands for that of the phase; empty: nobody."""

    name: str
    meaning: str
    in_process: str = ""
    in_job: str = ""

    def limit(self, phase: FaultPhase, in_process: bool, *, in_first_steps: bool = False) -> str:
        """Dotted key of the limit within which it is noticed; empty if nobody has to notice. in_process: layer 1 is on;
        while an attempt starts, its first steps included, it takes nothing for a hang."""
        if self.in_job != "section":
            return self.in_process if in_process else self.in_job
        if in_process and phase not in OF_AN_ATTEMPT and not in_first_steps:
            return self.in_process
        return SECTION_LIMITS["start_up" if in_first_steps and phase in OF_A_STEP else phase]


@dataclass(frozen=True)
class Row:
    """One kind in one phase. refused: why it is not possible; empty: it is."""

    kind: FaultKind
    phase: FaultPhase
    detected_by: str
    end: End
    refused: str = ""


@dataclass(frozen=True)
class Entry:
    """One kind. ends: what it ends where it strikes. device: where it is possible, `any`, `cpu` or `cuda`."""

    kind: FaultKind
    meaning: str
    ends: Ends
    rows: Mapping[FaultPhase, Row]
    device: Literal["any", "cpu", "cuda"] = "any"
    device_reason: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All of it. phases: their meaning."""

    phases: Mapping[FaultPhase, str]
    detectors: Mapping[str, Detector]
    entries: Mapping[FaultKind, Entry] = field(default_factory=dict)

    def row(self, kind: FaultKind, phase: FaultPhase) -> Row:
        """What the catalogue says of a kind in a phase."""
        return self.entries[kind].rows[phase]

    def rows(self) -> Iterator[Row]:
        """All of them: kinds x phases."""
        for entry in self.entries.values():
            yield from entry.rows.values()


class Incomplete(ValueError):
    """The catalogue's file does not say something that it must, or says what nobody can understand."""


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue that comes with the program."""
    return read(parse(PATH.read_text(encoding="utf-8")))


def read(data: Mapping[str, Any]) -> Catalogue:
    """From the file's content. Raises Incomplete unless each kind says of each phase either that it is allowed or why
    it is not."""
    for what, wanted in (("phases", PHASES), ("kinds", KINDS)):
        if set(data[what]) != set(wanted):
            raise Incomplete(f"{what}: {sorted(set(data[what]) ^ set(wanted))} is in the file or in the config only")
    detectors = {name: Detector(name, **fields) for name, fields in data["detectors"].items()}
    return Catalogue(
        phases={phase: data["phases"][phase] for phase in PHASES},
        detectors=detectors,
        entries={kind: _entry(kind, data["kinds"][kind], detectors) for kind in KINDS},
    )


def _entry(kind: FaultKind, data: Mapping[str, Any], detectors: Mapping[str, Detector]) -> Entry:
    refused = {phase.strip(): why for phases, why in data.get("refused", {}).items() for phase in phases.split(",")}
    both = set(refused) & set(data["phases"])
    missing = set(PHASES) - set(refused) - set(data["phases"])
    unknown = (set(refused) | set(data["phases"])) - set(PHASES)
    if both or missing or unknown:
        raise Incomplete(f"{kind}: allowed and refused {sorted(both)}, neither {sorted(missing)}, no phase {unknown}")
    rows = {}
    for phase in PHASES:
        own = {"detected_by": data["detected_by"], "end": data["end"], **data.get("by_phase", {}).get(phase, {})}
        if own["detected_by"] not in detectors or own["end"] not in get_args(End):
            raise Incomplete(f"{kind}, {phase}: {own} is not among the detectors and ends")
        rows[phase] = Row(kind, phase, own["detected_by"], own["end"], refused.get(phase, ""))
    if data["ends"] not in get_args(Ends):
        raise Incomplete(f"{kind}: ends {data['ends']}, which is none of {get_args(Ends)}")
    device = data.get("device", "any")
    return Entry(kind, data["meaning"], data["ends"], rows, device, data.get("device_reason", ""))


def fault_problems(c: RunConfig) -> Iterator[Problem]:
    """Faults that are not possible, by the catalogue or in this config."""
    for index, fault in enumerate(c.faults):
        key, entry = f"faults.{index}", catalogue().entries[fault.kind]
        row = entry.rows[fault.phase]
        if row.refused:
            allowed = ", ".join(phase for phase, other in entry.rows.items() if not other.refused)
            yield Problem(f"{key}.phase", fault.phase, f"{fault.kind}: {row.refused}", f"use {allowed}")
        elif entry.device not in ("any", c.device):
            why = entry.device_reason or f"{fault.kind} needs a GPU, and device={c.device} has none"
            yield Problem(f"{key}.kind", fault.kind, why, f"use it with device: {entry.device}, or another kind")
        elif c.checkpoint.mode == "off" and _needs_checkpoints(fault.kind, fault.phase):
            why = f"checkpoint.mode=off, so there is no {fault.phase if fault.phase in OF_A_SAVE else 'checkpoint'}"
            yield Problem(f"{key}.phase", fault.phase, why, "use checkpoint.mode: async or sync, or another phase")
        elif fault.kind == "dns_failure" and not c.recovery.in_job:
            why = "without recovery.in_job, no rank asks for the control pod's name"
            yield Problem(f"{key}.kind", fault.kind, why, "use recovery.in_job: true, or another kind")
        elif fault.kind == "network_partition" and c.world_size == 1:
            yield Problem(f"{key}.kind", fault.kind, "one rank has no peer", "use two or more, or another kind")
        elif fault.rank != 0 and _of_the_commit(fault.kind, fault.phase):
            why = "the commit is made by the writer of rank 0"
            yield Problem(f"{key}.rank", fault.rank, f"{fault.kind}: {why}", "use 0, or phase: persist")


def _needs_checkpoints(kind: FaultKind, phase: FaultPhase) -> bool:
    return phase in (*OF_A_SAVE, "restore") or kind in ("writer_death", "bit_flip_stored")


def _of_the_commit(kind: FaultKind, phase: FaultPhase) -> bool:
    return phase == "commit" and kind in ("slow_disk", "readonly_disk", "writer_death")
