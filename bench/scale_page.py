"""docs/scale.md, made from the kept numbers of `python -m bench.scale`; no number in it is typed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.demo import ROOT
from holdfast.config.failure_rates import FAULT_KINDS, LLAMA3_CAUSES, LLAMA3_DAYS, LLAMA3_NODES, LLAMA3_PLANNED
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.ledger import BUCKETS
from holdfast.goodput.model import MOST_PRESSURE

SCHEMA = 1
KEPT = ROOT / "bench" / "results" / "cpu" / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
PUBLISHED_GOODPUT = 0.90
COMMAND = "python -m bench.scale"
_AGREEMENT = "pytest tests/goodput/simulate/test_against_model.py"
_DAY_H = 24


def read(path: Path = KEPT) -> dict[str, Any]:
    """The kept numbers. Raises ConfigError if they are missing or of another schema."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError("it has another schema")
        return raw
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it cannot be used ({error})"
        raise ConfigError([Problem("simulation", path.name, why, f"run `{COMMAND}`")]) from None


def page(raw: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [
        "# At scale",
        "What Holdfast would do for a job of 16,384 GPUs. **Every number on this page is computed**, by a simulation "
        "of failures and by closed forms: no such cluster was at hand, and nothing here is a measurement of one. "
        "Where a duration was measured, it was on 2 CPU ranks or 2 GPUs, and the table of inputs says which. "
        f"`{COMMAND}` makes all numbers ({_source(raw)}); `{COMMAND} --page` makes the page from them.",
        "## Llama 3's interruptions",
        *_interruptions(raw),
        "## What each layer would have changed",
        *_arms(raw),
        "## Where the time goes",
        *_time(raw),
        "## How long each kind of interruption lasts",
        *_kinds(raw),
        "## What it was computed from",
        *_inputs(raw),
        "## How far to trust it",
        *_trust(raw),
    ]
    return "\n\n".join(parts) + "\n"


def _source(raw: Mapping[str, Any]) -> str:
    v = raw["versions"]
    return (
        f"{raw['date']}, commit {raw['commit']}, {raw['seeds']} seeds per row, Python {v['python']}, numpy "
        f"{v['numpy']}, scipy {v['scipy']}: [raw numbers]({os.path.relpath(KEPT, PAGE.parent)})"
    )


def _table(columns: list[str], rows: list[list[str]]) -> str:
    heads = " | ".join(column.removeprefix("<") for column in columns)
    marks = "|".join("---:" if column.startswith("<") else "---" for column in columns)
    return "\n".join([f"| {heads} |", f"|{marks}|", *("| " + " | ".join(row) + " |" for row in rows)])


def _made_by(command: str = COMMAND) -> str:
    return f"Made by `{command}`."


def _spread(band: Mapping[str, float]) -> str:
    return f"{band['median']:.0f} ({band['low']:.0f} to {band['high']:.0f})"


def _share(band: Mapping[str, float]) -> str:
    return f"{band['median']:.1%} ({band['low']:.1%} to {band['high']:.1%})"


def _interruptions(raw: Mapping[str, Any]) -> list[str]:
    arm = raw["arms"][raw["best"]]
    published = sum(cause.count for cause in LLAMA3_CAUSES)
    kinds: dict[str, int] = {}
    for cause in LLAMA3_CAUSES:
        kinds[cause.kind] = kinds.get(cause.kind, 0) + cause.count
    kinds["planned"] = LLAMA3_PLANNED
    rows = [
        [kind, FAULT_KINDS[kind].meaning, str(count), f"{arm['by_kind'][kind]['per_run']:.1f}"]
        for kind, count in sorted(kinds.items(), key=lambda one: -one[1])
    ]
    return [
        f"Llama 3 405B trained for {LLAMA3_DAYS} days on {LLAMA3_NODES} nodes of 8 H100 (arXiv 2407.21783, section "
        f"3.3.4). Unexpected interruptions: {published} published; simulated {_spread(arm['unexpected'])}, the middle "
        f"and the band in which nine of ten seeds lie. Planned ones: {LLAMA3_PLANNED} published; simulated "
        f"{_spread(arm['planned'])}. Rates are fitted to the published counts, so that the middle agrees is no "
        "prediction; the width of the band is one. Rows of its table 5 are grouped by what such a failure does to a "
        "job; the grouping is ours (`holdfast/config/failure_rates.py`).",
        _table(["kind", "what happens", "<published", "<simulated, mean"], rows),
        _made_by(),
    ]


def _arms(raw: Mapping[str, Any]) -> list[str]:
    rows = []
    for number, arm in enumerate(raw["arms"], 1):
        expected = "no estimate" if arm["expected_goodput"] is None else f"{arm['expected_goodput']:.1%}"
        intervals = ", ".join(f"{name} {steps}" for name, steps in arm["intervals_steps"].items())
        rows.append([str(number), arm["name"], intervals, str(arm["spares"]), _share(arm["goodput"]), expected])
    whole, best = raw["arms"][raw["whole"]], raw["arms"][raw["best"]]
    days = raw["days"] * (best["goodput"]["median"] - whole["goodput"]["median"])
    gpu_hours = days * _DAY_H * LLAMA3_NODES * 8
    reasons = sorted({reason for arm in raw["arms"] for reason in arm["no_expectation"]})
    return [
        f"Published: more than {PUBLISHED_GOODPUT:.0%} effective training time. Row 2 is the fastest whole-job restart "
        "that the literature calls usual and saves that block for ten seconds: it reproduces that. Row 1 is the "
        "slow end of both, and is ruled out by what was published. Goodput is the ledger's: steps that are part of the "
        "result, of all wall time, start-up and planned interruptions included. Against row 2, row "
        f"{raw['best'] + 1} trains {days:.1f} of the {raw['days']} days more: {gpu_hours:,.0f} GPU-hours.",
        _table(["", "restarts by", "save every so many steps", "<spares", "<goodput, simulated", "<closed form"], rows),
        "The closed form has no estimate where it would not hold: " + "; ".join(reasons) + ".",
        f"A job that needs all of {LLAMA3_NODES} nodes and has no spare waits for a repair nearly always: some node is "
        "always out. That row is what spares, or fewer nodes for a while, are for.",
        _made_by(),
    ]


def _time(raw: Mapping[str, Any]) -> list[str]:
    shown = [arm for arm in raw["arms"] if arm["goodput"]["median"] > 0.5]
    numbers = [raw["arms"].index(arm) + 1 for arm in shown]
    names = [name for name in BUCKETS if any(arm["buckets_s"][name] >= 360 for arm in shown)]
    rows = [[name, *(f"{arm['buckets_s'][name] / 3600:.1f}" for arm in shown)] for name in names]
    return [
        f"Hours of the {raw['days'] * _DAY_H} by bucket, mean of all seeds; buckets with less than a tenth of an hour "
        "everywhere are left out. Columns are the rows of the table above.",
        _table(["bucket", *(f"<{number}" for number in numbers)], rows),
        _made_by(),
    ]


def _kinds(raw: Mapping[str, Any]) -> list[str]:
    whole, best = raw["arms"][raw["whole"]], raw["arms"][raw["best"]]
    rows = []
    for kind, row in best["by_kind"].items():
        layers = max(row["layers"], key=row["layers"].__getitem__)
        rows.append([kind, f"{whole['by_kind'][kind]['recovered_s']:.0f}", f"{row['recovered_s']:.0f}", layers])
    return [
        f"Mean seconds from the fault until training goes on, loading included, in row 2 and in row "
        f"{raw['best'] + 1}, and the layer that mostly acts in the latter. Hangs wait for a timeout: that is what is "
        "left to gain.",
        _table(["kind", "<whole-job restart, s", "<all layers, s", "layer"], rows),
        _made_by(),
    ]


def _inputs(raw: Mapping[str, Any]) -> list[str]:
    rows = [[one["name"], f"{one['value']:.4g} {one['unit']}".strip(), one["basis"]] for one in raw["inputs"]]
    return [
        'Names with "whole" belong to rows 1 and 2, those with "ours" to the others. What was '
        "measured on two ranks is a lower bound for 16,384: imports from a shared file system, the rendezvous and the "
        "model's construction take longer there, and only the communicators are corrected for. The last row of the "
        "arms says what that could cost. On a cluster, `holdfast report` measures all of it.",
        _table(["input", "<value", "basis"], rows),
        f"Spares are as many as keep the probability of a shortage below its limit: {raw['spares']}, by the binomial "
        "distribution of the nodes that are out at a time.",
    ]


def _trust(raw: Mapping[str, Any]) -> list[str]:
    both = [(arm["goodput"]["mean"], arm["expected_goodput"]) for arm in raw["arms"] if arm["expected_goodput"]]
    worst = max(abs(mean - expected) / expected for mean, expected in both)
    speed = [[one["what"], f"{one['seconds']:.1f} s", f"{one['promised_s']:.0f} s"] for one in raw["speed"]]
    return [
        "Simulation and closed form share nothing but the description of the job; they differ by at most "
        f"{worst:.2%} in the {len(both)} rows that "
        f"have both (`{COMMAND}`), and by less than 1 % in 200 random jobs (`{_AGREEMENT}`). Beyond "
        f"{MOST_PRESSURE:.0%} of time in lost work and restarts the closed form gives no number, but says so.",
        "A simulated run written as an event log gives the ledger's buckets "
        "(`pytest tests/goodput/simulate/test_against_ledger.py`).",
        "What the simulation leaves out: failures that come in bursts, slow nodes, silent errors that are noticed "
        "late (6 of the published interruptions; here they are noticed at once), storage that other jobs slow down, "
        "and restarts that fail. Rates differ between clusters by a factor of three (the presets), which is more than "
        "any of the bands. On a cluster: `holdfast report RUN` after a week, beside the row that was planned with.",
        _table(["simulated", "<took", "<promised"], speed),
        f"{_made_by()} Wall time on {raw['hardware']['cores']} cores ({raw['hardware']['cpu']}), of which one is used, "
        "and which other work may have shared.",
    ]
