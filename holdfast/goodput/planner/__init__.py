"""What to change before a run is paid for: intervals, spares, layers, storage, and what each is worth.

inputs = default_inputs(config, nodes)                  # durations, each with its basis
inputs = calibrated(inputs, timeline, ledger, run_config, name)  # those that a real run has shown
plan = plan_for(Setting(config=config, nodes=nodes, rate=failure_rate("rsc1-measured"), inputs=inputs))
document([plan])                                        # plain data
"""

from holdfast.goodput.planner.calibration import calibrated
from holdfast.goodput.planner.changes import Change
from holdfast.goodput.planner.defaults import default_inputs
from holdfast.goodput.planner.inputs import Input, Inputs
from holdfast.goodput.planner.judge import Judged
from holdfast.goodput.planner.plan import Outlook, Plan, doublings, plan_for
from holdfast.goodput.planner.setting import (
    LOCAL,
    SHARED,
    Choice,
    Setting,
    configured,
    durations_of,
    planned_batch,
    planned_least,
    policy_of,
)
from holdfast.goodput.planner.summary import document, summary

__all__ = [
    "LOCAL",
    "SHARED",
    "Change",
    "Choice",
    "Input",
    "Inputs",
    "Judged",
    "Outlook",
    "Plan",
    "Setting",
    "calibrated",
    "configured",
    "default_inputs",
    "document",
    "doublings",
    "durations_of",
    "plan_for",
    "planned_batch",
    "planned_least",
    "policy_of",
    "summary",
]
