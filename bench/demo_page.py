"""What `make demo` has measured, in the documents: faults, layers, the parts of each restart."""

from __future__ import annotations

import os
from pathlib import Path

from bench import record
from bench.article_page import Table
from bench.demo import LAYERS, LIMITS_S, PROFILE, WORDS
from bench.record import Measured
from holdfast.commands.check import summary as profile_summary
from holdfast.config import load_profile
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.failures import PARTS, Recovery
from holdfast.goodput.report import heading, seconds, title
from holdfast.goodput.taxonomy import BUCKETS

DOING = {
    "noticed": "there is a first sign of it: a rank raises, or a launcher misses one",
    "stopped": "the old ranks are gone",
    "started": "the new processes run (in process: the function is entered again)",
    "imported": "torch, transformers and the rest are imported",
    "group": "the process group stands",
    "model": "model, optimizer and data are built",
    "restored": "the checkpoint is loaded",
    "first_step": "the first step is finished",
}
"""What has happened when a part of a restart ends."""

CHARACTER_S = 0.1
"""What a character of the picture of a restart stands for."""
SMALL = 0.01
"""Buckets with a smaller part of the wall time are not worth a row of the README."""


def _in_seconds(value: float | None) -> str:
    return "-" if value is None else f"{seconds(value)} s"


def _source(measured: Measured, folder: Path) -> str:
    link = os.path.relpath(record.KEPT, folder)
    h, v = measured.hardware, measured.versions
    return (
        f"Measured {measured.date} on {h['cores']} cores ({h['cpu']}), Python {v['python']}, torch {v['torch']}, "
        f"NVRx {v['nvidia-resiliency-ext']}, commit {measured.commit}: [raw numbers]({link})."
    )


def demo(measured: Measured, folder: Path, table: Table) -> str:
    """What `make demo` printed: faults, buckets, the comparison."""
    faults = sorted(measured.summary["faults"], key=lambda fault: fault["step"])
    rows = [
        [
            WORDS[fault["kind"]],
            str(fault["step"]),
            _in_seconds(fault["detected_s"]),
            _in_seconds(fault["recovered_s"]),
            f"{LIMITS_S[fault['kind']]:g} s",
            str(fault["lost_steps"]),
            LAYERS[fault["layer"]],
        ]
        for fault in faults
    ]
    wall_s = measured.broken["wall_s"]
    by_size = sorted(measured.summary["buckets"].items(), key=lambda item: -item[1])
    shares = [(name, seconds(value), f"{value / wall_s:.1%}", BUCKETS[name]) for name, value in by_size]
    large = sum(value >= SMALL * wall_s for _, value in by_size)
    small = ", ".join(f"{name} {value} s" for name, value, *_ in shares[large:] if value != seconds(0.0))
    compared = measured.comparison
    verdict = (
        f"final weights: {'identical to' if compared['identical'] else 'DIFFERENT from'} the unbroken run "
        f"({compared['tensors']} tensors, {compared['parameters']:,} parameters and their optimizer state, bit for bit)"
    )
    fault_columns = ("fault", "<at step", "<detected in", "<training again in", "<limit", "<steps lost", "by layer")
    return "\n\n".join(
        [
            _source(measured, folder) + f" The whole demo took {measured.summary['wall_s']:.0f} s.",
            table(fault_columns, rows),
            f"```\n{verdict}\n```",
            f"Where the {seconds(wall_s)} s of the broken run went (goodput {measured.summary['goodput']:.1%}; "
            f"the unbroken run took {seconds(measured.clean['wall_s'])} s, goodput {measured.clean['goodput']:.1%}):",
            table(("bucket", "<seconds", "<share", "meaning"), shares[:large]),
            f"Less than {SMALL:.0%} each: {small}.",
        ]
    )


def layers(measured: Measured, folder: Path, table: Table) -> str:
    """The four layers and what each cost in the demo."""
    lost = [recovery.lost_steps for recovery in measured.recoveries]
    saves = measured.clean["checkpoints"]
    blocked, persist = saves["blocked_s"]["median"], saves["persist_s"]["median"]
    size, _, how_often = dict(profile_summary(load_profile(PROFILE)))["checkpoint"].split(", ")
    rows = [
        [
            "0 checkpoint",
            "copy, background write by a separate process, two-phase commit",
            "lost work",
            f"a save of {size} holds a step up for {1000 * blocked:.1f} ms and is written in the background in "
            f"{_in_seconds(persist)} (medians); a fault cost {min(lost)} to {max(lost)} steps, saving {how_often}",
        ],
        [
            "1 in process",
            "NVRx `inprocess.Wrapper` around one attempt; processes stay",
            "exception, hang",
            _costs(measured, IN_PROCESS),
        ],
        [
            "2 in job",
            "NVRx `ft_launcher`, a rank monitor per rank, hot spares; pods stay",
            "crash, OOM kill, SIGKILL, a hang that layer 1 cannot cure",
            _costs(measured, IN_JOB),
        ],
        [
            "3 node",
            "one Kubernetes Job per node in a JobSet, and a CPU pod that keeps the rendezvous store",
            "lost node, lost control pod",
            _costs(measured, NODE),
        ],
    ]
    return table(("layer", "how", "cures", "what it cost in the demo"), rows) + "\n\n" + _source(measured, folder)


def _costs(measured: Measured, layer: str) -> str:
    found = [recovery for recovery in measured.recoveries if recovery.layer == layer]
    return "; ".join(
        f"{WORDS[r.fault.kind]}: training again after {_in_seconds(r.recovered_s)}, "
        f"noticed after {_in_seconds(r.detected_s)}"
        for r in found
    )


def breakdown(measured: Measured, folder: Path, table: Table) -> str:
    """One in-job restart as a picture, then the parts of every restart."""
    (in_job, *_) = [recovery for recovery in measured.recoveries if recovery.layer == IN_JOB]
    rows = [[heading(part), DOING[part], *(seconds(r.breakdown[part]) for r in measured.recoveries)] for part in PARTS]
    rows.append(["**total**", "", *(f"**{seconds(r.recovered_s)}**" for r in measured.recoveries)])
    columns = ["part", "ends when", *(f"<{r.fault.kind} ({LAYERS[str(r.layer)]})" for r in measured.recoveries)]
    return "\n\n".join(
        [
            f"The in-job restart after {title(in_job)}; one character is {CHARACTER_S:g} s:",
            f"```\n{_waterfall(in_job)}\n```",
            "The same parts for all five faults, in seconds; a dash: this part does not apply, or left no event of its "
            "own, and its time is in the next one.",
            table(columns, rows),
            _source(measured, folder),
        ]
    )


def _waterfall(recovery: Recovery) -> str:
    lines, at = [], 0.0
    for part in PARTS:
        lasted = recovery.breakdown[part] or 0.0
        start, end = round(at / CHARACTER_S), round((at + lasted) / CHARACTER_S)
        bar = " " * start + ("#" * (end - start) or ".")
        lines.append(f"{heading(part):<10} {seconds(recovery.breakdown[part]):>5} s  {bar}")
        at += lasted
    whole = range(int(at) + 1)
    scale = "".join(f"{second:<{round(1 / CHARACTER_S)}}" for second in whole)
    return "\n".join([f"{'':<10} {'':>7}  {scale}".rstrip(), *lines])
