"""The jobs of docs/scale.md: Llama 3 405B's cluster, restarted as a whole or by layers of ours. Every duration has a
basis: a kept measurement, a default of the config, a published number, or an assumption that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.demo import ROOT
from holdfast.config import RunConfig
from holdfast.config.failure_rates import FAILURE_RATES, LLAMA3_DAYS, LLAMA3_NODES, LLAMA3_PLANNED
from holdfast.config.sizing import lustre_bytes_per_s
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.model import Save, spares_for, unavailability, young_s
from holdfast.goodput.model.rates import DAY_S, mtbf_s
from holdfast.goodput.simulate import Cure, Durations, Fleet, Policy, Tier

RATE = FAILURE_RATES["llama3-405b"]
GPUS = 8 * LLAMA3_NODES
DEMO = ROOT / "bench" / "results" / "cpu" / "demo.json"
SAVES = ROOT / "bench" / "results" / "h200x2" / "checkpoint.json"


@dataclass(frozen=True)
class Input:
    """One number that the simulation starts from."""

    name: str
    value: float
    unit: str
    basis: str
    """measured, configured, published, computed or assumed; then where it stands."""


def _recovery(kind: str) -> Mapping[str, Any]:
    """The demo's recovery from one kind of fault, on 2 CPU ranks."""
    kept = json.loads(DEMO.read_text(encoding="utf-8"))["broken"]["recoveries"]
    return next(one for one in kept if one["kind"] == kind)


def _restart_s(kind: str) -> float:
    """From notice until the model is built: what layers and processes do before a checkpoint is loaded."""
    parts = _recovery(kind)["breakdown"]
    return sum(parts[part] or 0.0 for part in ("stopped", "started", "imported", "group", "model"))


def _save() -> Mapping[str, Any]:
    rows = json.loads(SAVES.read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if row["method"] == "holdfast")


_DEMO = "measured on 2 CPU ranks: bench/results/cpu/demo.json"
_H200 = "measured on 2 x H200, 17 GB of state per GPU: bench/results/h200x2/checkpoint.json"
_STATE_BYTES = 405e9 * 12
_STORAGE_GIB = 98_304
_LIMITS = RunConfig.model_fields["recovery"].get_default()
_STEP_TOKENS, _FLOPS = 16e6, 400e12

INPUTS: Mapping[str, Input] = {
    one.name: one
    for one in (
        Input("failures per day", RATE.hardware_per_node_day * LLAMA3_NODES + RATE.software_per_job_day, "",
              "published: arXiv 2407.21783, table 5, by counts"),
        Input("planned interruptions per day", LLAMA3_PLANNED / LLAMA3_DAYS, "", "published: arXiv 2407.21783"),
        Input("step", _STEP_TOKENS * 6 * 405e9 / (GPUS * _FLOPS), "s",
              "computed: 16 million tokens, 6 x 405e9 FLOPs each, at the published 400 TFLOP/s per GPU"),
        Input("start of a job", 600.0, "s", "assumed"),
        Input("a failed node is back after", DAY_S, "s", "assumed, exponentially distributed"),
        Input("state", _STATE_BYTES / 1e12, "TB", "computed: 405e9 parameters x 12 bytes"),
        Input("shared storage", lustre_bytes_per_s(_STORAGE_GIB, 1000) / 1e9, "GB/s",
              "computed: FSx for Lustre of 96 TiB at 1000 MB/s per TiB, which AWS promises; not measured"),
        Input("whole: a save blocks", 10.0, "s", "assumed: it allows the published result by Meta's formula"),
        Input("whole, slow: a save blocks", 60.0, "s", "assumed: by Meta's formula it rules the published result out"),
        Input("whole: restart", 300.0, "s", "published: arXiv 2410.21680, 5 to 20 min; the lower end"),
        Input("whole, slow: restart", 1200.0, "s", "published: arXiv 2410.21680; the upper end"),
        Input("ours: a shared save every", 300.0, "s", "chosen"),
        Input("ours: a local save every", 30.0, "s", "chosen"),
        Input("ours: a save blocks", _save()["blocked_s"], "s", _H200),
        # What is lost in noise may come out below 0, and a save that speeds steps up is none.
        Input("ours: a save slows steps down by", max(0.0, _save()["hidden_s"]), "s", _H200),
        Input("ours: a local save is safe after", 5.0, "s",
              "assumed: 0.3 GB per GPU to the node's disk and to a neighbour"),
        Input("ours: a local checkpoint is loaded in", 5.0, "s", "assumed"),
        Input("ours: local saves outlive a lost node", 0.95, "of cases",
              "assumed: the copy on the neighbour; the rest are pairs of neighbours lost together"),
        Input("ours: an exception is noticed after", _recovery("exception")["detected_s"], "s", _DEMO),
        Input("ours: a dead rank is noticed after", _recovery("rank_sigkill")["detected_s"], "s", _DEMO),
        Input("ours: a hang is noticed after, in process", _LIMITS.in_process_soft_timeout_s, "s",
              "configured: recovery.in_process_soft_timeout_s"),
        # By ADR 16 a step's limit is learned: so many times what steps take, which is less than this floor here.
        Input("ours: a hang is noticed after, in job", _LIMITS.step_timeout_floor_s, "s",
              "configured: recovery.step_timeout_floor_s"),
        Input("ours: a lost node is noticed after", _LIMITS.in_process_soft_timeout_s, "s",
              "assumed: as a hang in process; locally it is noticed at once, which says nothing of a network"),
        Input("ours: restart in process", _restart_s("exception"), "s", f"{_DEMO}, without communicators"),
        Input("ours: restart in job", _restart_s("rank_sigkill"), "s", f"{_DEMO}, without communicators"),
        Input("ours: restart of all pods", 300.0, "s",
              "published: Kubernetes JobSet KEP-467, several minutes for 1,000 nodes; the rest as in job"),
        Input("communicators of all ranks", 30.0, "s", "published: arXiv 2402.15627, below 30 s above 10,000 GPUs"),
        Input("ours, slow: restarts take", 10.0, "times as long",
              "assumed: imports, rendezvous and building at 16,384 ranks rather than 2; nobody has measured it"),
        Input("probability of no spare that is allowed", 1e-3, "", "chosen"),
    )
}  # fmt: skip
"""In the order of the page."""


def value(name: str) -> float:
    """An input's number."""
    return INPUTS[name].value


@dataclass(frozen=True)
class Arm:
    """One job."""

    name: str
    durations: Durations
    policy: Policy
    spares: int


SPARES = spares_for(
    LLAMA3_NODES,
    unavailability(RATE.hardware_per_node_day, value("a failed node is back after") / DAY_S),
    value("probability of no spare that is allowed"),
)
_KINDS = ("exception", "hang", "bad_gpu", "bad_link", "node_loss", "planned")
_RESTORE_S = value("state") * 1e12 / (value("shared storage") * 1e9)
"""Reading, and in the background writing, the whole state once. Storage that reads faster than it writes gains."""


def fleet(arm: Arm) -> Fleet:
    """Llama 3's failures and planned interruptions, and the arm's spares."""
    plain = Fleet.of(RATE, nodes=LLAMA3_NODES, spares=arm.spares, repair_s=value("a failed node is back after"))
    planned = {"planned": value("planned interruptions per day")}
    return Fleet(
        nodes=plain.nodes,
        spares=plain.spares,
        per_node_day=plain.per_node_day,
        per_job_day={**plain.per_job_day, **planned},
        repair_s=plain.repair_s,
    )


def _whole(name: str, blocked_s: float, restart_s: float) -> Arm:
    """The whole job starts anew, at the interval that Young would choose; a save blocks, and is then safe."""
    shared = Tier(name="shared", save=Save(blocked_s=blocked_s), restore_s=0.0)
    cures = {(kind, NODE): Cure(detection_s=0.0, restart_s=restart_s) for kind in _KINDS}
    interval_s = young_s(blocked_s, mtbf_s(RATE, LLAMA3_NODES).value)
    return Arm(name, _durations((shared,), cures), _policy({"shared": interval_s}, {NODE}), SPARES)


def _ours(
    name: str, *layers: str, local: bool = False, spares: int = SPARES, elastic: bool = False, slowness: float = 1.0
) -> Arm:
    """Saves as measured; some of our layers, whose processes start `slowness` times slower than measured."""
    cost = {"blocked_s": value("ours: a save blocks"), "hidden_s": value("ours: a save slows steps down by")}
    shared = Tier(name="shared", save=Save(**cost, background_s=_RESTORE_S), restore_s=_RESTORE_S)
    near = Tier(
        name="local",
        save=Save(**cost, background_s=value("ours: a local save is safe after")),
        restore_s=value("ours: a local checkpoint is loaded in"),
        recoverable=dict.fromkeys(("bad_gpu", "bad_link", "node_loss"), value("ours: local saves outlive a lost node")),
    )
    intervals = {"shared": value("ours: a shared save every")}
    if local:
        intervals["local"] = value("ours: a local save every")
    policy = _policy(intervals, set(layers), elastic=elastic)
    return Arm(name, _durations((near, shared) if local else (shared,), _cures(slowness)), policy, spares)


def _policy(intervals_s: Mapping[str, float], layers: set[str], *, elastic: bool = False) -> Policy:
    """Intervals in whole steps, each a multiple of the one below."""
    steps: dict[str, int] = {}
    for name, seconds in sorted(intervals_s.items(), key=lambda one: one[1]):
        unit = max(steps.values(), default=1)
        steps[name] = unit * max(1, round(seconds / value("step") / unit))
    return Policy(intervals=steps, layers=frozenset(layers), elastic=elastic, min_nodes=LLAMA3_NODES // 2)


def _durations(tiers: tuple[Tier, ...], cures: Mapping[tuple[str, str], Cure]) -> Durations:
    return Durations(step_s=value("step"), init_s=value("start of a job"), tiers=tiers, cures=cures)


def _cures(slowness: float) -> dict[tuple[str, str], Cure]:
    together = value("communicators of all ranks")
    in_process = together + slowness * value("ours: restart in process")
    in_job = together + slowness * value("ours: restart in job")
    all_pods = in_job + value("ours: restart of all pods")
    slow = value("ours: a hang is noticed after, in job")
    soon = value("ours: a hang is noticed after, in process")
    dead = value("ours: a dead rank is noticed after")
    noticed = {
        "exception": dead, "hang": slow, "bad_gpu": dead, "bad_link": slow, "planned": 0.0,
        "node_loss": value("ours: a lost node is noticed after"), "grow": 0.0,
    }  # fmt: skip
    cures = {(kind, IN_JOB): Cure(detection_s=s, restart_s=in_job) for kind, s in noticed.items()}
    cures |= {(kind, NODE): Cure(detection_s=s, restart_s=all_pods) for kind, s in noticed.items()}
    cures["exception", IN_PROCESS] = Cure(
        detection_s=value("ours: an exception is noticed after"), restart_s=in_process
    )
    cures["hang", IN_PROCESS] = Cure(detection_s=soon, restart_s=in_process)
    return cures


ARMS: tuple[Arm, ...] = (
    _whole("restart of the whole job, slow", value("whole, slow: a save blocks"), value("whole, slow: restart")),
    _whole("restart of the whole job", value("whole: a save blocks"), value("whole: restart")),
    _ours("Holdfast: background saves, new pods (layers 0, 3)", NODE),
    _ours("and new processes in the same pods, without spares (0, 2, 3)", IN_JOB, NODE, spares=0),
    _ours("the same, elastic", IN_JOB, NODE, spares=0, elastic=True),
    _ours(f"the same, with {SPARES} hot spares instead", IN_JOB, NODE),
    _ours("and restarts in process (0, 1, 2, 3)", IN_PROCESS, IN_JOB, NODE),
    _ours("and saves on the nodes themselves", IN_PROCESS, IN_JOB, NODE, local=True),
    _ours(
        "the same, if processes start ten times slower than measured",
        *(IN_PROCESS, IN_JOB, NODE),
        local=True,
        slowness=value("ours, slow: restarts take"),
    ),
)
"""From the worst to all that we have, and that with more pessimistic restarts."""
WHOLE, BEST = 1, 7
"""Indices of the arm that reproduces what was published, and of all that we have."""
