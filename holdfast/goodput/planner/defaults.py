"""Durations to plan with when no run has been measured. Each says what it rests on.

Measured numbers are rounded from the files that they name: a plan is no better than its inputs, and those of a CPU say
little about a cluster. `holdfast plan --from RUN` replaces them by those of a real run.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config import RunConfig, sizing
from holdfast.config.flops import flops_per_token, peak_flops_per_s
from holdfast.config.fsx import tier_of
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS
from holdfast.goodput.planner.inputs import (
    ASSUMED,
    COMPUTED,
    CONFIGURED,
    CURED_BY,
    MEASURED,
    PUBLISHED,
    Input,
    Inputs,
    cure_name,
)

_DEMO = f"{MEASURED} on 2 CPU ranks: bench/results/cpu/demo.json"
_H200 = f"{MEASURED} on 2 x H200 with 17 GB of state per GPU: bench/results/h200x2/checkpoint.json"
_LAUNCHER = f"{ASSUMED}: as 2 CPU ranks on a quiet machine (bench/results/cpu/recovery.json measures such restarts)"

DEMO_S = {"blocked": 0.001, "hidden": 0.005, "persist": 0.1, "restore": 0.3, "dead": 0.05, "in_process": 0.3,
          "init": 9.0, "shutdown": 3.0}  # fmt: skip
"""Seconds, rounded from bench/results/cpu/demo.json; a test holds them against it."""
H200_S = {"blocked": 0.0023, "hidden": 0.0, "background": 2.6}
"""Seconds, rounded from the row `holdfast` of bench/results/h200x2/checkpoint.json, where what a save hides in later
steps is lost in noise; a test holds them against it."""
IN_JOB_S, PODS_S = 2.7, 5.0
"""Restart of two ranks by the launcher, its pauses included and imports not; and of their pods on one machine."""
IMPORT_S = 4.0
MFU = 0.4
LOCAL_BYTES_PER_S = 4e9
COMMUNICATORS_S = 30.0
NODE_BACK_S = 2400.0
PERSON_S = 3600.0
OUTLIVES_NODE = 0.95
_PODS_S, _PODS_PER_NODE_S = 60.0, 0.24


def default_inputs(config: RunConfig, nodes: int) -> Inputs:
    """Every input for a job of this config on so many nodes; each node's work is as configured (weak scaling)."""
    found = {
        "step_s": _step(config),
        "data_stall_s": Input(0.0, f"{ASSUMED}: data is read ahead"),
        "first_step_s": Input(0.0, f"{ASSUMED}: nothing is compiled"),
        "init_s": _init(config),
        "shutdown_s": Input(DEMO_S["shutdown"], _DEMO),
        "import_s": Input(
            IMPORT_S, f"{ASSUMED}: as on 2 quiet CPU cores (bench/results/cpu/recovery.json measures it)"
        ),
        "repair_s": _repair(config),
        "person_s": Input(PERSON_S, f"{ASSUMED}: somebody starts a run that no layer could save"),
    }
    found |= dict(_shared(config))
    found |= dict(_local(config, nodes))
    found |= dict(_cures(config, nodes))
    return Inputs(found)


def _step(config: RunConfig) -> Input:
    training = config.training
    if training.expected_step_s is not None:
        seconds = max(training.expected_step_s, training.min_step_s)
        return Input(seconds, f"{CONFIGURED}: training.expected_step_s and training.min_step_s")
    peak = peak_flops_per_s(config)
    if peak is not None:
        tokens = training.global_batch_size * config.data.sequence_length
        flops = tokens * flops_per_token(config.model, config.data.sequence_length)
        seconds = max(flops / (config.world_size * peak * MFU), training.min_step_s)
        return Input(seconds, f"{COMPUTED}: operations per step at an assumed MFU of {MFU:.0%}")
    if training.min_step_s:
        return Input(training.min_step_s, f"{CONFIGURED}: training.min_step_s")
    why = "set training.expected_step_s"
    return Input(0.05 if config.device == "cpu" else 1.0, f"{ASSUMED}: nothing says how long a step takes; {why}")


def _init(config: RunConfig) -> Input:
    if config.instance.ec2:
        return Input(300.0, f"{ASSUMED}: image on the node, pods, model and communicators")
    return Input(DEMO_S["init"], _DEMO)


def _repair(config: RunConfig) -> Input:
    if config.instance.ec2:
        why = "EKS replaces a node after 10 to 30 min (published), which takes about 10 more; no other is free"
        return Input(NODE_BACK_S, f"{ASSUMED}: {why}")
    return Input(PODS_S, f"{ASSUMED}: the local runner gives another node at once")


def _shared(config: RunConfig) -> Iterator[tuple[str, Input]]:
    """What a save to the shared storage costs."""
    blocked, hidden, background, restore = _shared_parts(config)
    yield "shared.blocked_s", blocked
    # A write cannot slow steps down for longer than it lasts.
    yield "shared.hidden_s", Input(min(hidden.value, background.value), hidden.basis)
    yield "shared.background_s", background
    yield "shared.restore_s", restore


def _shared_parts(config: RunConfig) -> tuple[Input, Input, Input, Input]:
    if config.device == "cpu" and not config.instance.ec2:
        blocked, hidden, background, restore = (
            Input(DEMO_S[part], _DEMO) for part in ("blocked", "hidden", "persist", "restore")
        )
        return blocked, hidden, background, restore
    blocked, hidden = (Input(H200_S[part], _H200) for part in ("blocked", "hidden"))
    if not config.instance.ec2:
        background = Input(H200_S["background"], _H200)
        return blocked, hidden, background, Input(background.value, f"{ASSUMED}: as long as a write")
    size, tier = sizing.checkpoint_bytes(config), tier_of(config)
    how = f"{size / 1e9:.0f} GB at the {tier.bytes_per_s / 1e6:.0f} MB/s that AWS promises for this file system"
    moved = Input(size / tier.bytes_per_s, f"{COMPUTED}: {how}")
    return blocked, hidden, moved, moved


def _local(config: RunConfig, nodes: int) -> Iterator[tuple[str, Input]]:
    """What a save to the nodes' own disks or memory costs."""
    if config.device == "cpu":
        blocked, hidden = (Input(DEMO_S[part], f"{_DEMO}, as a shared save") for part in ("blocked", "hidden"))
    else:
        blocked, hidden = (Input(H200_S[part], f"{_H200}, as a shared save") for part in ("blocked", "hidden"))
    copies = 2 if config.checkpoint.local.replicate and nodes > 1 else 1
    part = sizing.checkpoint_bytes(config) / nodes
    seconds = part / LOCAL_BYTES_PER_S
    how = f"{part / 1e9:.2g} GB per node at an assumed {LOCAL_BYTES_PER_S / 1e9:g} GB/s"
    yield "local.blocked_s", blocked
    yield "local.background_s", Input(max(copies * seconds, hidden.value), f"{COMPUTED}: {copies} x {how}")
    yield "local.hidden_s", hidden
    yield "local.restore_s", Input(seconds, f"{COMPUTED}: {how}")
    if copies == 1:
        yield "local.outlives_node", Input(0.0, f"{CONFIGURED}: no copy on another node")
    else:
        yield "local.outlives_node", Input(OUTLIVES_NODE, f"{ASSUMED}: the copy on a neighbour, unless both are lost")


def _cures(config: RunConfig, nodes: int) -> Iterator[tuple[str, Input]]:
    for kind, layers in CURED_BY.items():
        for layer in layers:
            yield cure_name(kind, layer, "detection_s"), _detection(config, kind, layer)
            yield cure_name(kind, layer, "restart_s"), _restart(config, nodes, layer)


def _detection(config: RunConfig, kind: str, layer: str) -> Input:
    r = config.recovery
    if kind == "planned":
        return Input(0.0, f"{CONFIGURED}: it is announced")
    if kind in ("hang", "bad_link"):
        if layer != IN_PROCESS:
            return Input(r.step_section_timeout_s, f"{CONFIGURED}: recovery.step_section_timeout_s")
        if config.device == "cpu":
            return Input(r.process_group_timeout_s, f"{CONFIGURED}: recovery.process_group_timeout_s, as gloo raises")
        return Input(r.in_process_soft_timeout_s, f"{CONFIGURED}: recovery.in_process_soft_timeout_s")
    if kind == "node_loss" and config.instance.ec2:
        # Nothing tells a network that a peer is gone: its ranks hang until a limit is reached.
        name = "in_process_soft_timeout_s" if r.in_process else "step_section_timeout_s"
        return Input(getattr(r, name), f"{ASSUMED}: as a hang, recovery.{name}")
    return Input(DEMO_S["dead"], _DEMO)


def _restart(config: RunConfig, nodes: int, layer: str) -> Input:
    """From notice until a checkpoint can be loaded, without a standby."""
    together = COMMUNICATORS_S if config.instance.ec2 else 0.0
    more = ""
    if together:
        more = f"; and {together:g} s for communicators, {PUBLISHED}: arXiv 2402.15627, the bound for 10,000 GPUs"
    if layer == IN_PROCESS:
        return Input(DEMO_S["in_process"] + together, f"{_DEMO}{more}")
    in_job = IN_JOB_S + IMPORT_S + together
    if layer == IN_JOB:
        return Input(in_job, f"{_LAUNCHER}{more}")
    if config.instance.ec2:
        pods = _PODS_S + _PODS_PER_NODE_S * nodes
        why = f"{pods:.0f} s for new pods (a minute, and several at 1,000 nodes as JobSet's KEP-467 says)"
        return Input(in_job + pods, f"{ASSUMED}: {why}; the rest {_LAUNCHER}{more}")
    return Input(in_job + PODS_S, f"{_LAUNCHER}, and {PODS_S:g} s for pods")
