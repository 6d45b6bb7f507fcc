"""What is planned for, what may be chosen, and both as the simulator and the closed form take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.config import RunConfig, fsx
from holdfast.config.failure_rates import FailureRate
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.columns import LOCAL as LOCAL
from holdfast.goodput.model import Save
from holdfast.goodput.planner.inputs import CURED_BY, Inputs, cure_name
from holdfast.goodput.simulate import GROW, Cure, Durations, Fleet, Policy, Tier

SHARED = "shared"
_NODE_KINDS = ("bad_gpu", "bad_link", "node_loss")
"""What a node's own checkpoints may not outlive."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """All that a plan decides about."""

    shared_steps: int
    """Steps between two saves to the shared storage."""
    local_steps: int | None
    """Steps between two saves on the nodes themselves; None: no local tier."""
    spares: int
    in_process: bool
    in_job: bool
    standby: bool
    storage: fsx.Tier
    """File system; what it costs and how fast it is matters on EC2 only."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is given."""

    config: RunConfig
    nodes: int
    """Nodes that train; may differ from the config's, then each works as one of the config's does."""
    rate: FailureRate
    inputs: Inputs

    @property
    def has_storage(self) -> bool:
        """Whether its shared storage is an FSx file system that can be chosen."""
        return self.config.instance.ec2

    @property
    def may_be_local(self) -> bool:
        """Whether its nodes have a place for checkpoints of their own."""
        c = self.config
        return c.checkpoint.mode == "async" and (c.instance.local_nvme or c.checkpoint.local.interval_steps is not None)


def configured(setting: Setting) -> Choice:
    """What the profile says."""
    c = setting.config
    local = c.checkpoint.local.interval_steps if c.checkpoint.mode == "async" else None
    return Choice(
        shared_steps=c.checkpoint.interval_steps,
        local_steps=local,
        spares=c.recovery.spares,
        in_process=c.recovery.in_process,
        in_job=c.recovery.in_job,
        standby=c.recovery.standby,
        storage=fsx.tier_of(c),
    )


def durations_of(setting: Setting, choice: Choice) -> Durations:
    """How long everything takes with this choice."""
    i = setting.inputs
    return Durations(
        step_s=i["step_s"],
        data_stall_s=i["data_stall_s"],
        first_step_s=i["first_step_s"],
        init_s=i["init_s"],
        shutdown_s=i["shutdown_s"],
        tiers=_tiers(setting, choice),
        cures=_cures(i, standby=choice.standby),
        person=Cure(detection_s=0.0, restart_s=i["person_s"]),
    )


def fleet_of(setting: Setting, choice: Choice) -> Fleet:
    """The nodes and their failures."""
    repair_s = setting.inputs["repair_s"]
    return Fleet.of(setting.rate, nodes=setting.nodes, spares=choice.spares, repair_s=repair_s)


def policy_of(setting: Setting, choice: Choice) -> Policy:
    """Intervals and layers."""
    intervals: dict[str, int] = {} if choice.local_steps is None else {LOCAL: choice.local_steps}
    layers = {IN_PROCESS: choice.in_process, IN_JOB: choice.in_job, NODE: setting.config.recovery.max_generations > 0}
    config = setting.config
    elastic = config.elastic and choice.in_job
    return Policy(
        intervals={**intervals, SHARED: choice.shared_steps},
        layers=frozenset(name for name, on in layers.items() if on),
        elastic=elastic,
        min_nodes=planned_least(setting) if elastic else 1,
    )


def planned_batch(setting: Setting) -> int:
    """Samples per step with which each node has as much to do as one of the profile's, so that a step takes as long as
    was planned. Whole: the profile's own nodes share its batch in equal parts."""
    config = setting.config
    return config.training.global_batch_size // config.cluster.nodes * setting.nodes


def planned_least(setting: Setting) -> int:
    """The same share of the nodes as the profile's recovery.min_nodes, or the next more that the batch allows."""
    config = setting.config
    least = max(1, config.min_nodes * setting.nodes // config.cluster.nodes)
    of_one_node = config.cluster.ranks_per_node * config.training.micro_batch_size
    sizes = (size for size in range(least, setting.nodes) if planned_batch(setting) % (size * of_one_node) == 0)
    return next(sizes, setting.nodes)


def with_intervals(choice: Choice, steps: Mapping[str, int]) -> Choice:
    """The choice with these intervals."""
    return replace(choice, shared_steps=steps[SHARED], local_steps=steps.get(LOCAL))


def switched(choice: Choice, switch: str, on: bool) -> Choice:
    """The choice with one of its switches (in_process, in_job, standby) set."""
    return Choice(**{**vars(choice), switch: on})


def _tiers(setting: Setting, choice: Choice) -> tuple[Tier, ...]:
    i = setting.inputs
    faster = choice.storage.bytes_per_s / fsx.tier_of(setting.config).bytes_per_s if setting.has_storage else 1.0
    save = _save(i, SHARED, faster)
    if setting.config.checkpoint.mode == "sync":
        save = Save(blocked_s=save.blocked_s + save.background_s)
    shared = Tier(name=SHARED, save=save, restore_s=i["shared.restore_s"] / faster)
    if choice.local_steps is None:
        return (shared,)
    outlives = dict.fromkeys(_NODE_KINDS, i["local.outlives_node"])
    local = Tier(name=LOCAL, save=_save(i, LOCAL, 1.0), restore_s=i["local.restore_s"], recoverable=outlives)
    return local, shared


def _save(inputs: Inputs, tier: str, faster: float) -> Save:
    background = inputs[f"{tier}.background_s"] / faster
    # Measured on its own, what a write hides may come out longer than the write: never more than that.
    hidden = min(inputs[f"{tier}.hidden_s"], background)
    return Save(blocked_s=inputs[f"{tier}.blocked_s"], hidden_s=hidden, background_s=background)


def _cures(inputs: Inputs, *, standby: bool) -> dict[tuple[str, str], Cure]:
    cures = {}
    for kind, layers in CURED_BY.items():
        for layer in layers:
            if (kind, layer) not in inputs.not_cured:
                cures[kind, layer] = _cure(inputs, kind, layer, standby=standby)
    cures[GROW, IN_JOB] = Cure(detection_s=0.0, restart_s=_cure(inputs, "exception", IN_JOB, standby=standby).restart_s)
    return cures


def _cure(inputs: Inputs, kind: str, layer: str, *, standby: bool) -> Cure:
    restart_s = inputs[cure_name(kind, layer, "restart_s")]
    if standby and layer == IN_JOB:
        restart_s = max(0.0, restart_s - inputs["import_s"])
    return Cure(detection_s=inputs[cure_name(kind, layer, "detection_s")], restart_s=restart_s)
