"""A plan: what the profile as it is will reach, what is recommended instead, and what each single change would buy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.fsx import tier_of
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.planner.changes import Change, changes_of
from holdfast.goodput.planner.judge import Judged, Simulated, judge, never_a_number, spread_of
from holdfast.goodput.planner.money import Cost, cost_of
from holdfast.goodput.planner.recommend import recommend
from holdfast.goodput.planner.setting import Choice, Setting, configured, durations_of

FEWEST_NODES, MOST_NODES = 1, 2048


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is to be expected of a choice."""

    judged: Judged
    simulated: Simulated | None
    """Spread over seeds; None outside the model."""
    cost: Cost | None
    """None outside the model."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer for one number of nodes."""

    setting: Setting
    configured: Outlook
    recommended: Outlook | None
    """None where the failure rate says nothing of such a job: `notes` says why."""
    changes: tuple[Change, ...]
    """Empty where they were not asked for, or cannot be judged."""
    notes: tuple[str, ...]

    @property
    def failures_per_day(self) -> float:
        """Of the job."""
        rate = self.setting.rate
        return rate.hardware_per_node_day * self.setting.nodes + rate.software_per_job_day


def plan_for(setting: Setting, *, with_changes: bool = True) -> Plan:
    """The plan. Raises ConfigError for a config that saves nothing."""
    _refuse(setting)
    base = configured(setting)
    never = never_a_number(setting)
    if never:
        outlook = Outlook(judged=judge(setting, base), simulated=None, cost=None)
        return Plan(setting=setting, configured=outlook, recommended=None, changes=(), notes=tuple(never))
    found = recommend(setting)
    changes = changes_of(setting, base, found.choice) if with_changes else []
    return Plan(
        setting=setting,
        configured=_outlook(setting, base),
        recommended=_outlook(setting, found.choice),
        changes=tuple(changes),
        notes=(*found.notes, *_notes(setting, found.choice)),
    )


def doublings(first: int, last: int) -> list[int]:
    """first, twice that, and so on, and last. Raises ConfigError outside 1 to 2048."""
    if not FEWEST_NODES <= first <= last <= MOST_NODES:
        why = f"a range is FIRST..LAST with {FEWEST_NODES} <= FIRST <= LAST <= {MOST_NODES}"
        raise ConfigError([Problem("--nodes", f"{first}..{last}", why, "write it like 2..2048, or one number")], "plan")
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == last else [*sizes, last]


def _refuse(setting: Setting) -> None:
    if setting.config.checkpoint.mode == "off":
        why = "nothing is saved, so there is no interval to plan, and a long job never ends"
        raise ConfigError([Problem("checkpoint.mode", "off", why, "use async")], "plan")


def _outlook(setting: Setting, choice: Choice) -> Outlook:
    judged = judge(setting, choice)
    cost = None if judged.goodput is None else cost_of(setting, choice, judged.goodput)
    return Outlook(judged=judged, simulated=spread_of(setting, judged), cost=cost)


def _notes(setting: Setting, choice: Choice) -> Iterator[str]:
    if setting.nodes != setting.config.cluster.nodes:
        yield (
            f"each node is taken to work as one of the profile's {setting.config.cluster.nodes} does, on the same "
            "model in the same step time"
        )
    if choice.spares == 0 and setting.rate.hardware_per_node_day > 0:
        yield "no spare is recommended: waiting for a lost node costs less than keeping one idle (--explain: repair_s)"
    if setting.has_storage and choice.storage != tier_of(setting.config):
        yield "the file system is chosen for checkpoints alone: add the room that data takes"
    if choice.shared_steps >= setting.config.training.steps:
        yield "the best interval is longer than the run, which saves at its end anyhow"


def background_s(setting: Setting, choice: Choice) -> float:
    """Seconds of one background write to the shared storage."""
    return durations_of(setting, choice).tiers[-1].save.background_s
