"""Asks the planner what single changes of a run's config would buy, with the durations that the run itself has shown.

The same as `holdfast plan --profile run.yaml --from RUN`: same model, same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from holdfast.config import ConfigError, Problem, RunConfig, names
from holdfast.config.failure_rates import failure_rate
from holdfast.config.load import validate
from holdfast.config.yaml_text import parse
from holdfast.goodput.planner import Plan, Setting, calibrated, default_inputs, plan_for
from holdfast.goodput.planner.judge import Simulated
from holdfast.goodput.planner.money import gpu_or_rank, node_usd
from holdfast.report.run import ReportedRun
from holdfast.report.what_if import Change, NoWhatIf, WhatIf


def what_if_of(runs: Sequence[ReportedRun]) -> WhatIf | NoWhatIf:
    """The planner's answer for the run that has overcome most faults, the first of several; or why it has none."""
    run = max(runs, key=lambda one: sum(recovery.recovered_s is not None for recovery in one.ledger.recoveries))
    try:
        plan = _plan(run)
    except ConfigError as error:
        return NoWhatIf(f"Of {run.name}: {'; '.join(problem.why for problem in error.problems)}.")
    base = plan.configured
    if base.judged.goodput is None:
        return NoWhatIf(f"Of {run.name}: {'; '.join(base.judged.reasons)}.")
    changes = tuple(_changes(plan))
    if not changes:
        return NoWhatIf(f"Of {run.name}: no change of its config has a number ({' '.join(_exceptions(plan))}).")
    nothing_saved = None if node_usd(plan.setting) is None else 0.0
    return WhatIf(
        as_is=Change("as it is", base.judged.goodput, *_band(base.simulated), 0.0, nothing_saved),
        changes=changes,
        basis=" ".join(_basis(run, plan)),
        unit=gpu_or_rank(plan.setting),
    )


def _plan(run: ReportedRun) -> Plan:
    config = _config(run)
    rate = failure_rate(config.reliability.failure_rate)
    if not rate.hardware_per_node_day + rate.software_per_job_day:
        why = "its config plans for no failures, so no change can buy anything"
        raise ConfigError([Problem("reliability.failure_rate", rate.name, why, "name a preset with failures")], "plan")
    inputs = default_inputs(config, config.cluster.nodes)
    inputs = calibrated(inputs, run.timeline, run.ledger, config, run.name)
    return plan_for(Setting(config=config, nodes=config.cluster.nodes, rate=rate, inputs=inputs))


def _config(run: ReportedRun) -> RunConfig:
    """The run's config. Raises ConfigError with one problem."""
    try:
        plain = parse(run.config_text)
        if isinstance(plain, dict):
            return validate(plain, names.RUN_YAML)
        why = f"it has no {names.RUN_YAML} that says how it was started"
    except yaml.YAMLError:
        why = f"its {names.RUN_YAML} is no YAML"
    except ConfigError as error:
        first = error.problems[0]
        why = f"its {names.RUN_YAML} is no config of this version ({first.key}: {first.why})"
    raise ConfigError([Problem(names.RUN_YAML, run.name, why, "use the version of holdfast that wrote it")], "plan")


def _changes(plan: Plan) -> Iterator[Change]:
    for one in plan.changes:
        if one.judged.goodput is not None and one.saved_gpu_hours is not None:
            band = _band(one.simulated)
            yield Change(one.name, one.judged.goodput, *band, one.saved_gpu_hours, one.saved_usd)


def _band(spread: Simulated | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.goodput.low, spread.goodput.high)


def _basis(run: ReportedRun, plan: Plan) -> Iterator[str]:
    inputs, rate = plan.setting.inputs, plan.setting.rate
    shown = len(inputs.by_name) - len(inputs.kept)
    yield (
        f"{shown} of {len(inputs.by_name)} durations are calibrated on {run.name}; the others, which it did not show, "
        "are defaults."
    )
    if not run.ledger.recoveries:
        yield "It had no fault, so every detection and restart is such a default."
    yield f"Failure rate: {rate.name}, {plan.failures_per_day:.3g} a day ({rate.source})."
    if spread := plan.configured.simulated:
        yield f"The band holds nine of ten simulated runs of {spread.days:.3g} days."
    yield "Savings are per month for the same work: hours count spares, dollars spares and file system."
    yield from _exceptions(plan)


def _exceptions(plan: Plan) -> Iterator[str]:
    """Changes whose goodput cannot be held against that of the job as it is, or that have none."""
    how = plan.configured.judged.how
    for one in plan.changes:
        if one.judged.goodput is None or one.gain is None:
            yield f'"{one.name}" has no number: {"; ".join(one.judged.reasons)}.'
        elif one.judged.how != how:
            base = one.judged.goodput - one.gain
            yield f'"{one.name}" is {one.judged.how}: hold it against {base:.2%}, which is as it is by the same method.'
