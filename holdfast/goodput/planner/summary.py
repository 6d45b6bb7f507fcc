"""A plan as plain data for JSON. Its keys are an interface: tests pin them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.goodput.planner.changes import Change
from holdfast.goodput.planner.inputs import Inputs
from holdfast.goodput.planner.judge import Simulated
from holdfast.goodput.planner.plan import Outlook, Plan, background_s
from holdfast.goodput.planner.setting import Choice, Setting

SCHEMA = 1


def summary(plan: Plan) -> dict[str, Any]:
    """One plan. Goodput is 0 to 1, times are seconds, months have 730 hours; null: outside the model or no price."""
    setting = plan.setting
    return {
        "nodes": setting.nodes,
        "failures_per_day": plan.failures_per_day,
        "configured": _outlook(setting, plan.configured),
        "recommended": None if plan.recommended is None else _outlook(setting, plan.recommended),
        "changes": [_change(setting, change) for change in plan.changes],
        "notes": list(plan.notes),
    }


def document(plans: list[Plan]) -> dict[str, Any]:
    """All plans of one call, with what they rest on."""
    first = plans[0].setting
    return {
        "schema": SCHEMA,
        "profile": first.config.name,
        "failure_rate": asdict(first.rate),
        "plans": [summary(plan) for plan in plans],
        "inputs": inputs_summary(first.inputs),
        "inputs_kept_at_default": list(first.inputs.kept),
    }


def inputs_summary(inputs: Inputs) -> dict[str, dict[str, Any]]:
    """Name -> value and basis."""
    return {name: {"value": one.value, "basis": one.basis} for name, one in inputs.by_name.items()}


def choice_summary(setting: Setting, choice: Choice) -> dict[str, Any]:
    """What is chosen; intervals in steps and in seconds of undisturbed training."""
    step_s = setting.inputs["step_s"] + setting.inputs["data_stall_s"]
    local = choice.local_steps
    storage = choice.storage
    return {
        "shared_interval_steps": choice.shared_steps,
        "shared_interval_s": choice.shared_steps * step_s,
        "local_interval_steps": local,
        "local_interval_s": None if local is None else local * step_s,
        "spares": choice.spares,
        "in_process": choice.in_process,
        "in_job": choice.in_job,
        "standby": choice.standby,
        "storage": {
            "deployment_type": "SCRATCH_2" if storage.mbps_per_tib is None else "PERSISTENT_2",
            "capacity_gib": storage.capacity_gib,
            "throughput_mbps_per_tib": storage.mbps_per_tib,
        }
        if setting.has_storage
        else None,
        "background_write_s": background_s(setting, choice),
    }


def _outlook(setting: Setting, outlook: Outlook) -> dict[str, Any]:
    judged, spread = outlook.judged, outlook.simulated
    return {
        "choice": choice_summary(setting, judged.choice),
        "goodput": judged.goodput,
        "how": judged.how,
        "reasons": list(judged.reasons),
        "band": _band(spread),
        "cost_per_month": None if outlook.cost is None else asdict(outlook.cost),
    }


def _band(spread: Simulated | None) -> dict[str, Any] | None:
    return None if spread is None else {**asdict(spread.goodput), "days": spread.days}


def _change(setting: Setting, change: Change) -> dict[str, Any]:
    judged = change.judged
    return {
        "change": change.name,
        "choice": choice_summary(setting, judged.choice),
        "goodput": judged.goodput,
        "how": judged.how,
        "reasons": list(judged.reasons),
        "gain": change.gain,
        "band": _band(change.simulated),
        "saved_gpu_hours_per_month": change.saved_gpu_hours,
        "saved_usd_per_month": change.saved_usd,
    }
