"""The tables of docs/faults.md, made from the fault catalogue."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.config.fault_catalogue import PHASES, Catalogue, Detector, Entry, catalogue

ALLOWED, REFUSED = "yes", "no"


def kinds_table() -> str:
    """One line per kind: in which phases it is possible, who notices, how the run ends, what it is."""
    known = catalogue()
    heads = ["kind", *PHASES, "noticed by", "end", "what happens"]
    return _table(heads, [_kind(entry) for entry in known.entries.values()])


def refusals_table() -> str:
    """Each refused pair with its reason."""
    lines = []
    for entry in catalogue().entries.values():
        reasons: dict[str, list[str]] = {}
        for row in entry.rows.values():
            if row.refused:
                reasons.setdefault(row.refused, []).append(row.phase)
        lines += [[f"`{entry.kind}`", ", ".join(phases), why] for why, phases in reasons.items()]
        if entry.device != "any":
            why = entry.device_reason or "it needs a GPU"
            lines.append([f"`{entry.kind}`", f"any, where device is not {entry.device}", why])
    return _table(["kind", "phases", "why not"], lines)


def phases_table() -> str:
    """What each phase is, and the limit of the section that it lies in."""
    known = catalogue()
    return _table(["phase", "what it is"], [[f"`{phase}`", meaning] for phase, meaning in known.phases.items()])


def detectors_table() -> str:
    """Who notices a fault, and the limit in the config, with layer 1 and without."""
    return _table(
        ["noticed by", "what that is", "limit with recovery.in_process", "limit without"],
        [_detector(one) for one in catalogue().detectors.values()],
    )


def counts(known: Catalogue | None = None) -> str:
    """`97 of 207 pairs of kind and phase are possible`."""
    rows = list((known or catalogue()).rows())
    return f"{sum(not row.refused for row in rows)} of {len(rows)} pairs of kind and phase are possible"


def _kind(entry: Entry) -> list[str]:
    rows = [entry.rows[phase] for phase in PHASES]
    allowed = [row for row in rows if not row.refused]
    noticed = list(dict.fromkeys(row.detected_by for row in allowed))
    ends = list(dict.fromkeys(row.end for row in allowed))
    marks = [REFUSED if row.refused else ALLOWED for row in rows]
    return [f"`{entry.kind}`", *marks, ", ".join(noticed), ", ".join(ends), entry.meaning]


def _detector(one: Detector) -> list[str]:
    limits = [
        "that of the section" if key == "section" else f"`{key}`" if key else "" for key in (one.in_process, one.in_job)
    ]
    return [one.name, one.meaning, *limits]


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in rows)
