"""When what breaks: drawn from the fleet's rates, or given."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.config.failure_rates import FAULT_KINDS
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.simulate.settings import Fleet

DAY_S = 86_400.0
_AT_ONCE = 512
"""Faults drawn at a time: most runs need one draw, and none draws much more than it uses."""


@dataclass(frozen=True, kw_only=True)
class GivenFault:
    """A fault whose time is known: of a measured run, or one that a person asks about.

    Exactly one of at_s (from the start of the run) and at_step (at the start of this step, as trainer/faults does
    it) is given. A fault at a step strikes once, the first time that the step begins.
    """

    kind: str
    at_s: float | None = None
    at_step: int | None = None
    node: int = 0


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at a time. Nodes from fleet.nodes on are spares; -1: none in particular."""

    at: float
    kind: str
    node: int


def draw(fleet: Fleet, random: np.random.Generator) -> Iterator[Strike]:
    """Faults of nodes, spares and job for ever, in order of time; nothing if no rate is above 0."""
    everywhere = fleet.nodes + fleet.spares
    rates = [(kind, rate * everywhere, True) for kind, rate in sorted(fleet.per_node_day.items())]
    rates += [(kind, rate, False) for kind, rate in sorted(fleet.per_job_day.items())]
    total = sum(rate for _, rate, _ in rates)
    if total <= 0:
        return
    shares = np.cumsum([rate / total for _, rate, _ in rates])
    now = 0.0
    while True:
        times = now + np.cumsum(random.exponential(DAY_S / total, _AT_ONCE))
        which = np.minimum(np.searchsorted(shares, random.random(_AT_ONCE), side="right"), len(rates) - 1)
        nodes = random.integers(0, everywhere, _AT_ONCE)
        now = float(times[-1])
        for at, index, node in zip(times.tolist(), which.tolist(), nodes.tolist(), strict=True):
            kind, _, of_node = rates[index]
            yield Strike(at, kind, node if of_node else -1)


def given(faults: Iterable[GivenFault], nodes: int) -> tuple[Iterator[Strike], deque[tuple[int, Strike]]]:
    """(faults by time, (step, fault) by step), each in order. nodes: with spares. ConfigError for what cannot be."""
    faults = tuple(faults)
    problems = [problem for index, fault in enumerate(faults) for problem in _problems(index, fault, nodes)]
    if problems:
        raise ConfigError(problems, "simulation")
    timed = [Strike(fault.at_s, fault.kind, fault.node) for fault in faults if fault.at_s is not None]
    stepped = [(fault.at_step, Strike(0.0, fault.kind, fault.node)) for fault in faults if fault.at_step is not None]
    return iter(sorted(timed, key=lambda one: one.at)), deque(sorted(stepped, key=lambda one: one[0]))


def _problems(index: int, fault: GivenFault, nodes: int) -> Iterator[Problem]:
    key = f"faults[{index}]"
    if fault.kind not in FAULT_KINDS:
        yield Problem(
            f"{key}.kind", fault.kind, "there is no such kind of fault", f"use one of {', '.join(FAULT_KINDS)}"
        )
    if not 0 <= fault.node < nodes:
        yield Problem(f"{key}.node", fault.node, f"there are {nodes} nodes", f"use 0 to {nodes - 1}")
    if (fault.at_s is None) == (fault.at_step is None):
        yield Problem(key, fault, "its time must be given once", "give at_s or at_step")
    elif fault.at_s is not None and not 0 <= fault.at_s < math.inf:
        yield Problem(f"{key}.at_s", fault.at_s, "it lies in the run", "use seconds from its start, 0 or more")
    elif fault.at_step is not None and fault.at_step < 1:
        yield Problem(f"{key}.at_step", fault.at_step, "steps count from 1", "use 1 or more")


class Faults:
    """The faults of one simulation, in the order in which the job meets them."""

    def __init__(self, timed: Iterator[Strike], stepped: Sequence[tuple[int, Strike]] = ()) -> None:
        self._timed = timed
        self._stepped = deque(stepped)
        self._next = next(timed, None)

    def next_at(self) -> float:
        """Time of the next one that has a time; math.inf if there is none."""
        return self._next.at if self._next else math.inf

    def pop(self) -> Strike:
        """Take it. Raises ValueError if there is none."""
        taken = self._next
        if taken is None:
            raise ValueError("there is no further fault")
        self._next = next(self._timed, None)
        return taken

    def next_step(self) -> int | None:
        """Step at whose start the next one of the others strikes."""
        return self._stepped[0][0] if self._stepped else None

    def pop_step(self, at: float) -> Strike:
        """Take that one; it strikes now."""
        return replace(self._stepped.popleft()[1], at=at)
