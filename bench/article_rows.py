"""Rows of bench.article: one per finished job, from its ledger, and the result that is made of them."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import json_lines, record
from bench.recovery_records import PACKAGES
from holdfast.config import RunConfig
from holdfast.goodput.ledger import Ledger
from holdfast.goodput.timeline import Timeline

SCHEMA = 1
CODE = ("holdfast", "k8s", "trainer", *(f"bench/article{part}.py" for part in ("", "_job", "_rows")))
"""What must not differ from the commit for the numbers to be its numbers."""
MEASURES = ("goodput", "goodput_total", "article_training_goodput", "article_infra_goodput")
LIMIT_S = 30.0
"""Longest that nvidia-smi may take."""
ABOUT = (
    "The published experiment: the same faults in every arm, each arm a job of `holdfast run`. goodput counts from the "
    "first finished step, goodput_total includes start-up; the article_ ones are the article's own formulas. A "
    "restarted pod is the local runner's: it waits for no node, pulls no image, and backs off for 0.5 s where "
    "Kubernetes takes 10 s. calls: how often `holdfast run` was started; each further start-up is in the row's init "
    "bucket, and the time between two calls in queue, which no goodput counts. calls_between: a recovery that a "
    "further call has cut in two took longer for that. attempts: one for each fault and each call, if no limit struck "
    "without a fault and each restart succeeded at once."
)
CPU = " On a CPU gloo's timeout ends a hang in every arm, and steps are padded: this tries the bench out, no more."


def make_row(arm: str, config: RunConfig, timeline: Timeline, ledger: Ledger, commit: str | None) -> dict[str, Any]:
    """The row of a finished job."""
    summary = ledger.summary()
    recoveries = [one for one in ledger.recoveries if one.fault.id]
    again = [event.start for event in timeline.named("run_start")][1:]
    return {
        "arm": arm,
        **{name: summary[name] for name in MEASURES},
        "wall_s": ledger.wall_s,
        "buckets": dict(ledger.buckets),
        "steps": config.training.steps,
        "ranks": config.world_size,
        "faults": len(config.faults),
        "recoveries": [
            {key: getattr(one.fault, key) for key in ("kind", "rank", "step")}
            | {key: getattr(one, key) for key in ("layer", "detected_s", "recovered_s", "lost_steps")}
            | {"calls_between": sum(one.fault.at < time <= one.fault.at + (one.recovered_s or 0) for time in again)}
            for one in recoveries
        ],
        "attempts": len(ledger.attempts),
        "calls": len(timeline.named("run_start")),
        "began": round(ledger.origin + ledger.start, 3),
        "commit": commit,
        "load": round(os.getloadavg()[2], 1),
        "recovery_keys": _differences(config),
    }


def _differences(config: RunConfig) -> dict[str, Any]:
    """What of the section `recovery` is not its default: the arm, to the letter."""
    return config.recovery.model_dump(mode="json", exclude_defaults=True)


def is_whole(row: dict[str, Any]) -> bool:
    """Whether every fault has struck, and was recovered from."""
    recovered = [one for one in row["recoveries"] if one["recovered_s"] is not None]
    return bool(len(recovered) == len(row["recoveries"]) == row["faults"])


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All rows, each job's once, in the order in which they were added."""
    return list({(row["arm"], row["began"]): row for row in json_lines.read(files)}.values())


def gpus() -> list[str]:
    """Names of the GPUs that nvidia-smi lists; none where there is no such command."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def machine(config: RunConfig) -> dict[str, Any]:
    """Where and with what is measured."""
    found = gpus()[: config.world_size] if config.device == "cuda" else []
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": record.hardware() | ({"gpus": found} if found else {}),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def result(rows: Sequence[dict[str, Any]], config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """The kept file."""
    return {
        "schema": SCHEMA,
        "about": ABOUT + CPU * (config.device == "cpu"),
        **machine(config),
        "profile": arguments.profile,
        "overrides": list(arguments.overrides),
        "step_s": config.training.min_step_s,
        "save_every_steps": config.checkpoint.interval_steps,
        "local_save_every_steps": config.checkpoint.local.interval_steps,
        "faults": [fault.model_dump(mode="json", include={"kind", "step", "rank"}) for fault in config.faults],
        "rows": list(rows),
    }


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The rows as a table: shares of time, seconds, and what each fault took."""
    table = Table(title="The same five faults in every arm")
    for heading in ("arm", "steps", "goodput", "with start-up", "article: training", "infra", "wall s", "calls"):
        table.add_column(heading)
    table.add_column("fault to next step, s (steps lost; *: with the time between two calls)")
    for row in rows:
        faults = ", ".join(
            f"{one['kind']} {one['recovered_s']:.1f} ({one['lost_steps']})"
            if one["recovered_s"] is not None
            else "never"
            for one in row["recoveries"]
        )
        shares = (f"{row[name]:.1%}" for name in MEASURES)
        table.add_row(row["arm"], str(row["steps"]), *shares, f"{row['wall_s']:.0f}", str(row["calls"]), faults)
    console.print(table)
