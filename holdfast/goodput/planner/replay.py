"""A run that has not been measured, told from durations and the faults that will strike it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.config import RunConfig
from holdfast.config.failure_rates import FAILURE_RATES, FAULT_KINDS
from holdfast.goodput.attempts import reigning
from holdfast.goodput.ledger import Ledger, account
from holdfast.goodput.planner.inputs import Inputs, cure_name
from holdfast.goodput.planner.setting import Setting, configured, durations_of, policy_of
from holdfast.goodput.simulate import Fleet, GivenFault, Simulation, simulate, timeline_of
from holdfast.goodput.simulate.settings import PERSON, layer_of


@dataclass(frozen=True)
class Predicted:
    """A run as it will be, and what its ledger will say."""

    run: Simulation
    ledger: Ledger
    not_calibrated: frozenset[str]
    """Inputs of the faults' cures that the calibrating run did not show."""


_FROM_OUTSIDE = ("node_loss", "control_loss")


def faults_of(ledger: Ledger) -> list[GivenFault]:
    """Kind and step of each injected fault of a measured run; others have no kind that can be simulated.

    A rank breaks itself at the start of the step that it was asked to. What breaks a node from outside comes a little
    later than that: the step after the last one that was finished counts.
    """
    given = []
    for fault in (one.fault for one in ledger.recoveries if one.fault.kind in FAULT_KINDS):
        step = fault.step
        if fault.kind in _FROM_OUTSIDE or step is None:
            struck = [attempt for attempt in reigning(ledger.attempts) if attempt.begin <= fault.at]
            step = 1 + max((attempt.last_step for attempt in struck[-1:]), default=0)
        given.append(GivenFault(kind=fault.kind, at_step=step))
    return given


def predicted(inputs: Inputs, config: RunConfig, faults: Sequence[GivenFault]) -> Predicted:
    """The run of a config that is struck by these faults."""
    setting = Setting(config=config, nodes=config.cluster.nodes, rate=FAILURE_RATES["none"], inputs=inputs)
    choice = configured(setting)
    durations, policy = durations_of(setting, choice), policy_of(setting, choice)
    fleet = Fleet(nodes=setting.nodes, spares=choice.spares, repair_s=inputs["repair_s"], repair_varies=False)
    run = simulate(durations, fleet, policy, steps=config.training.steps, faults=faults)
    used = {(fault.kind, layer_of(fault.kind, durations, policy)) for fault in faults}
    cures = {cure_name(kind, layer, "detection_s") for kind, layer in used if layer != PERSON}
    return Predicted(run, account(timeline_of(run, durations)), frozenset(cures & set(inputs.kept)))
