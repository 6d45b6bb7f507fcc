"""What a simulated job is made of: how long things take, the fleet it runs on, and what it does about failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.config.failure_rates import FAULT_KINDS, FailureRate, kind_counts
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE
from holdfast.goodput.model.saves import Save

LAYERS = (IN_PROCESS, IN_JOB, NODE)
"""Restart layers, in the order in which they are tried. Checkpoints are layer 0 and always there if a tier is."""
PERSON = "person"
"""What cures a fault that no layer cures: somebody calls `holdfast resume`."""
GROW = "grow"
"""The kind under which an elastic job's restart with returned nodes is looked up in `cures`."""


@dataclass(frozen=True, kw_only=True)
class Cure:
    """How long a layer takes for one kind of fault. Seconds."""

    detection_s: float
    """From the fault until somebody noticed."""
    restart_s: float
    """From then until ranks could begin to load a checkpoint. Waiting for a node comes on top (Fleet.repair_s)."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A place for checkpoints."""

    name: str
    save: Save
    restore_s: float
    """Loading the newest checkpoint of this tier."""
    recoverable: Mapping[str, float] = field(default_factory=dict)
    """Kind -> probability that this tier's newest checkpoint outlives such a fault; 1 for kinds that are not named."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """How long everything takes. Seconds."""

    step_s: float
    """A step that nothing disturbs."""
    data_stall_s: float = 0.0
    """Per step, on top: waiting for data."""
    first_step_s: float = 0.0
    """What the first step of an attempt takes longer. Counts as productive, as in the ledger."""
    queue_s: float = 0.0
    """Until the first pod starts; and again after a person's restart."""
    init_s: float = 0.0
    """From the first pod to the first step."""
    shutdown_s: float = 0.0
    """After the last commit."""
    tiers: tuple[Tier, ...] = ()
    """Fastest first. The last one is the shared storage: every fault can go back to it."""
    cures: Mapping[tuple[str, str], Cure] = field(default_factory=dict)
    """(kind of fault, layer) -> its times. A pair that is missing means that this layer does not cure this kind."""
    person: Cure = Cure(detection_s=0.0, restart_s=3600.0)
    """A fault that no switched-on layer cures: until noticed, and until somebody has started the run again."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The nodes, and how often what breaks."""

    nodes: int
    """Nodes that the job trains on."""
    spares: int = 0
    """Hot spares beside them. They fail like the others."""
    per_node_day: Mapping[str, float] = field(default_factory=dict)
    """Kind -> faults per node and day; they grow with the fleet."""
    per_job_day: Mapping[str, float] = field(default_factory=dict)
    """Kind -> faults per day of the whole job, whatever its size."""
    repair_s: float = 86_400.0
    """Mean time until a node that failed is back, repaired or replaced by another."""
    repair_varies: bool = True
    """Exponentially distributed; False: always exactly repair_s."""

    @staticmethod
    def of(rate: FailureRate, *, nodes: int, spares: int = 0, repair_s: float = 86_400.0) -> Fleet:
        """A fleet that fails at a published rate. Kinds are Llama 3's by their counts: no other source has them all."""
        hardware, software = kind_counts(software=False), kind_counts(software=True)
        return Fleet(
            nodes=nodes,
            spares=spares,
            per_node_day=_shared(rate.hardware_per_node_day, hardware),
            per_job_day=_shared(rate.software_per_job_day, software),
            repair_s=repair_s,
        )

    def per_day(self, kind: str) -> float:
        """Faults of this kind that strike the job in a day, if all its nodes run."""
        return self.per_node_day.get(kind, 0.0) * self.nodes + self.per_job_day.get(kind, 0.0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every kind that has a rate."""
        return tuple(sorted({*self.per_node_day, *self.per_job_day}))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the job does about failures."""

    intervals: Mapping[str, int] = field(default_factory=dict)
    """Name of a tier -> a save every so many steps. A tier that is not named is not used."""
    layers: frozenset[str] = frozenset({IN_JOB, NODE})
    """Restart layers that are switched on."""
    elastic: bool = False
    """Go on with fewer nodes when no spare is at hand, and take the node back when it returns."""
    min_nodes: int = 1
    """Fewest nodes of an elastic job."""


def check(durations: Durations, fleet: Fleet, policy: Policy) -> None:
    """Raise ConfigError, with all problems, if these cannot be simulated."""
    problems = [*_durations(durations), *_fleet(fleet), *_policy(durations, fleet, policy)]
    if problems:
        raise ConfigError(problems, "simulation")


def layer_of(kind: str, durations: Durations, policy: Policy) -> str:
    """The first layer that is switched on and cures this kind; PERSON if there is none."""
    able = (layer for layer in LAYERS if layer in policy.layers and (kind, layer) in durations.cures)
    return next(able, PERSON)


def cure_of(kind: str, layer: str, durations: Durations) -> Cure:
    """Its times."""
    return durations.person if layer == PERSON else durations.cures[kind, layer]


def _shared(rate: float, counts: Mapping[str, int]) -> dict[str, float]:
    whole = sum(counts.values())
    return {kind: rate * count / whole for kind, count in counts.items()} if rate else {}


def _durations(d: Durations) -> Iterator[Problem]:
    if not 0 < d.step_s < math.inf:
        yield Problem("durations.step_s", d.step_s, "a step takes time", "use the seconds of an undisturbed step")
    times = {name: getattr(d, name) for name in ("data_stall_s", "first_step_s", "queue_s", "init_s", "shutdown_s")}
    times |= {f"tiers.{tier.name}.restore_s": tier.restore_s for tier in d.tiers}
    for (kind, layer), cure in [*d.cures.items(), (("any", PERSON), d.person)]:
        times |= {
            f"cures.{kind}.{layer}.detection_s": cure.detection_s,
            f"cures.{kind}.{layer}.restart_s": cure.restart_s,
        }
    for name, value in times.items():
        if not 0 <= value < math.inf:
            yield Problem(f"durations.{name}", value, "a duration is finite and not negative", "use seconds, 0 or more")
    for tier in d.tiers:
        for kind, chance in tier.recoverable.items():
            if not 0 <= chance <= 1:
                key = f"durations.tiers.{tier.name}.recoverable.{kind}"
                yield Problem(key, chance, "it is a probability", "use a number from 0 to 1")
    if d.tiers and any(chance < 1 for chance in d.tiers[-1].recoverable.values()):
        key = f"durations.tiers.{d.tiers[-1].name}.recoverable"
        why = "the last tier is the one that outlives everything, else a fault would lose the whole run"
        yield Problem(key, dict(d.tiers[-1].recoverable), why, "give it no recoverable shares")


def _fleet(f: Fleet) -> Iterator[Problem]:
    if f.nodes < 1:
        yield Problem("fleet.nodes", f.nodes, "a job has at least one node", "use 1 or more")
    if f.spares < 0:
        yield Problem("fleet.spares", f.spares, "it is a number of nodes", "use 0 or more")
    if not 0 < f.repair_s < math.inf:
        yield Problem("fleet.repair_s", f.repair_s, "a node is away for a while", "use seconds above 0")
    for name, rates in (("per_node_day", f.per_node_day), ("per_job_day", f.per_job_day)):
        for kind, rate in rates.items():
            if kind not in FAULT_KINDS:
                fix = f"use one of {', '.join(FAULT_KINDS)}"
                yield Problem(f"fleet.{name}.{kind}", rate, "there is no such kind of fault", fix)
            elif not 0 <= rate < math.inf:
                yield Problem(f"fleet.{name}.{kind}", rate, "a rate is finite and not negative", "use 0 or more")


def _policy(d: Durations, f: Fleet, p: Policy) -> Iterator[Problem]:
    known = {tier.name for tier in d.tiers}
    for name, interval in p.intervals.items():
        if name not in known:
            fix = f"use one of {', '.join(sorted(known)) or 'none: durations.tiers is empty'}"
            yield Problem(f"policy.intervals.{name}", interval, "there is no such tier", fix)
        elif interval < 1:
            yield Problem(f"policy.intervals.{name}", interval, "a save comes after at least one step", "use 1 or more")
    if p.intervals and d.tiers and d.tiers[-1].name not in p.intervals:
        why = f"without {d.tiers[-1].name}, no checkpoint outlives the loss of a node"
        yield Problem("policy.intervals", dict(p.intervals), why, f"give {d.tiers[-1].name} an interval")
    for layer in sorted(p.layers - set(LAYERS)):
        yield Problem("policy.layers", layer, "there is no such layer", f"use some of {', '.join(LAYERS)}")
    if p.elastic and not 1 <= p.min_nodes <= f.nodes:
        yield Problem("policy.min_nodes", p.min_nodes, "it must lie between 1 and fleet.nodes", "use such a number")
    if p.elastic and not p.intervals:
        why = "it saves before it takes a node back, and nothing is saved"
        yield Problem("policy.elastic", True, why, "give policy.intervals a tier")
    if p.elastic and (GROW, IN_JOB) not in d.cures:
        why = "an elastic job restarts when a node returns"
        yield Problem("policy.elastic", True, why, f"give durations.cures the times of ({GROW!r}, {IN_JOB!r})")
