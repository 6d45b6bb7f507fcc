"""The table of all limits of time, from the config's own docstrings and the profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.config import load_profile
from holdfast.config.fields import meaning

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]
"""Columns and rows as Markdown."""
TIMEOUTS = (
    "first_section_timeout_s", "init_section_timeout_s", "restore_section_timeout_s", "step_section_timeout_s",
    "checkpoint_section_timeout_s", "out_of_section_timeout_s", "workload_check_interval_s", "process_group_timeout_s",
    "in_process_interval_s", "in_process_soft_timeout_s", "in_process_hard_timeout_s", "in_process_barrier_timeout_s",
    "step_timeout_floor_s", "unfit_wait_s", "spare_check_interval_s", "max_lost_s",
    "in_process_heartbeat_timeout_s", "workers_stop_timeout_s", "standby_wait_s", "term_timeout_s", "leave_before_s",
    "join_timeout_s", "owner_lease_s", "shrink_after_s", "grow_after_s", "rejoin_timeout_s",
)  # fmt: skip
"""Fields of `recovery` that are limits, in the order in which a run meets them."""
_ELSEWHERE = ("checkpoint.persist_timeout_s", "cluster.grace_period_s")
_SHOWN = ("cpu-demo", "gpu-local", "llama3-8b-p5x8")


def timeouts(table: Table) -> str:
    """Every limit with its meaning and its value in some profiles."""
    configs = [load_profile(name) for name in _SHOWN]
    keys = [*(f"recovery.{name}" for name in TIMEOUTS), *_ELSEWHERE]
    rows = []
    for key in keys:
        section, name = key.split(".")
        values = [getattr(getattr(c, section), name) for c in configs]
        shown = ["none" if value is None else f"{value:g}" for value in values]
        rows.append([f"`{key}`", meaning((section, name)), *shown])
    return table(("key", "what it limits", *(f"<{name}" for name in _SHOWN)), rows)
