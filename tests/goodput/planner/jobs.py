"""Settings to plan for, and event logs of imagined runs to calibrate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.config import RunConfig, load_profile
from holdfast.config.failure_rates import FAILURE_RATES, FailureRate, failure_rate
from holdfast.goodput.ledger import account
from holdfast.goodput.planner import Input, Inputs, Setting, calibrated, default_inputs
from holdfast.goodput.planner.setting import configured, durations_of, policy_of
from holdfast.goodput.simulate import Durations, Fleet, GivenFault, simulate, timeline_of

CLUSTER = "llama3-8b-p5x8"
FAULTS = (
    GivenFault(kind="exception", at_step=28),
    GivenFault(kind="hang", at_step=67),
    GivenFault(kind="rank_sigkill", at_step=106),
)


def setting(
    profile: str = CLUSTER, *overrides: str, nodes: int | None = None, rate: FailureRate | str = "rsc1-measured"
) -> Setting:
    """A profile with its defaults."""
    config = load_profile(profile, overrides)
    size = nodes or config.cluster.nodes
    asked = failure_rate(rate) if isinstance(rate, str) else rate
    return Setting(config=config, nodes=size, rate=asked, inputs=default_inputs(config, size))


def scaled_rate(factor: float, name: str = "rsc1-measured") -> FailureRate:
    """A preset, so many times as high."""
    rate = FAILURE_RATES[name]
    return replace(
        rate,
        hardware_per_node_day=rate.hardware_per_node_day * factor,
        software_per_node_day=rate.software_per_node_day * factor,
    )


def given_inputs(config: RunConfig, values: dict[str, float]) -> Inputs:
    """Defaults with these values."""
    defaults = default_inputs(config, config.cluster.nodes)
    return defaults.with_values({name: Input(value, "measured: a test") for name, value in values.items()}, tell=False)


def durations_for(config: RunConfig, inputs: Inputs) -> Durations:
    """What the planner makes of them."""
    one = Setting(config=config, nodes=config.cluster.nodes, rate=FAILURE_RATES["none"], inputs=inputs)
    return durations_of(one, configured(one))


def calibrated_on_imagined(config: RunConfig, truth: Inputs, faults: Sequence[GivenFault] = FAULTS) -> Inputs:
    """Defaults, calibrated on a run in which everything lasted as `truth` says."""
    one = Setting(config=config, nodes=config.cluster.nodes, rate=FAILURE_RATES["none"], inputs=truth)
    choice = configured(one)
    durations = durations_of(one, choice)
    run = simulate(
        durations,
        Fleet(nodes=one.nodes, spares=choice.spares, repair_s=truth["repair_s"], repair_varies=False),
        policy_of(one, choice),
        steps=config.training.steps,
        faults=faults,
    )
    timeline = timeline_of(run, durations)
    defaults = default_inputs(config, config.cluster.nodes)
    return calibrated(defaults, timeline, account(timeline), config, "imagined")
