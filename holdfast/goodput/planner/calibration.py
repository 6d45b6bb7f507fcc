"""Durations from a real run: what its ledger shows takes the place of the defaults, the rest stays and is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from holdfast.config import RunConfig
from holdfast.config.problems import ConfigError, Problem
from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE, Attempt, reigning
from holdfast.goodput.dividing import divide
from holdfast.goodput.failures import Recovery
from holdfast.goodput.ledger import Ledger
from holdfast.goodput.planner.inputs import CURED_BY, MEASURED, Input, Inputs, cure_name
from holdfast.goodput.planner.setting import LOCAL, SHARED
from holdfast.goodput.saves import Saves, per_save
from holdfast.goodput.timeline import Timeline

_AT_ONCE_S = 1e-3
"""A simulation needs a time for a node's return; where it is a part of the measured restart, this stands for none."""


@dataclass(frozen=True)
class _Overcome:
    """A recovery and the attempt that ended it. Seconds."""

    recovery: Recovery
    healed: Attempt
    detection_s: float
    restored_s: float
    restart_s: float
    """From notice to the first step, without the restore."""

    @property
    def pair(self) -> tuple[str, str]:
        """(kind, layer)."""
        return self.recovery.fault.kind, self.recovery.layer or NODE


def calibrated(inputs: Inputs, timeline: Timeline, ledger: Ledger, run: RunConfig, name: str) -> Inputs:
    """Inputs with the durations that a run shows. run: the run's own config. name: what to call it.

    Raises ConfigError for a run with too few steps to tell how long one takes.
    """
    basis = f"{MEASURED}: {name}"
    attempts = [attempt for attempt in reigning(ledger.attempts) if len(attempt.finished)]
    overcome = [*_overcome(ledger, attempts)]
    found = dict(_training(ledger, attempts, name))
    found |= dict(_saves(timeline, ledger.saves))
    found |= dict(_restores(overcome))
    found |= dict(_cures(overcome, run, inputs))
    found["init_s"] = ledger.buckets["init"]
    if ledger.attempts[-1].complete:
        # The last save is waited for. Runs differ in how long; together with the shutdown it is what the end takes.
        waited = found.get("shared.background_s", 0.0) + found.get("shared.blocked_s", 0.0)
        found["shutdown_s"] = max(0.0, ledger.buckets["other"] + ledger.buckets["checkpoint_wait"] - waited)
    if run.recovery.spares == 0 and any(one.recovery.fault.kind == "node_loss" for one in overcome):
        found["repair_s"] = _AT_ONCE_S
    values = {key: Input(value, basis) for key, value in found.items() if key in inputs.by_name}
    return inputs.with_values(values, frozenset(_not_cured(overcome, run)))


def _training(ledger: Ledger, attempts: Sequence[Attempt], name: str) -> Iterator[tuple[str, float]]:
    """Undisturbed steps, and what the first one of an attempt takes longer."""
    firsts, others = [], []
    for attempt in attempts:
        lengths = (attempt.extents.end - attempt.extents.start).tolist()
        firsts.append(lengths[0])
        others += lengths[1:]
    if not others:
        why = "it has no attempt with two finished steps, so it does not tell how long one takes"
        raise ConfigError([Problem("--from", name, why, "name a run that has trained for a while")], "plan")
    extra = max(0.0, fmean(firsts) - fmean(others))
    # An attempt whose first step was rolled back left no extra time in what counts as productive.
    yield "first_step_s", extra
    yield "step_s", max(_AT_ONCE_S, (ledger.buckets["productive"] - extra * len(attempts)) / ledger.steps)
    yield "data_stall_s", ledger.buckets["data_stall"] / ledger.steps


def _saves(timeline: Timeline, saves: Saves) -> Iterator[tuple[str, float]]:
    attempts = divide(timeline).values()
    for tier, local, hidden in ((SHARED, False, saves.hidden_s), (LOCAL, True, saves.local_hidden_s)):
        staged = per_save(attempts, "stage", local=local)
        writes = per_save(attempts, "persist", local=local) or per_save(attempts, "write", local=local)
        if staged:
            yield f"{tier}.blocked_s", fmean(staged)
        if writes:
            # The first write of a writer process takes much longer than the others: the middle one is the usual.
            yield f"{tier}.background_s", median(writes)
        if writes and hidden:
            yield f"{tier}.hidden_s", min(fmean(hidden), median(writes))


def _overcome(ledger: Ledger, attempts: Sequence[Attempt]) -> Iterator[_Overcome]:
    """Recoveries from one fault each: of several at once, nobody knows which one took how long."""
    ends = [one.fault.at + one.recovered_s for one in ledger.recoveries if one.recovered_s is not None]
    for one in ledger.recoveries:
        if one.recovered_s is None or one.detected_s is None or one.layer is None:
            continue
        end = one.fault.at + one.recovered_s
        if sum(abs(end - other) < _AT_ONCE_S for other in ends) > 1:
            continue
        healed = next((a for a in attempts if a.first_finished[1] >= end - _AT_ONCE_S), None)
        if healed is None:
            continue
        first_start, first_end = healed.first_finished
        restored = _restoring(ledger, one.fault.at, end)
        restart = one.recovered_s - one.detected_s - restored - (first_end - first_start)
        yield _Overcome(one, healed, one.detected_s, restored, max(0.0, restart))


def _restoring(ledger: Ledger, start: float, end: float) -> float:
    """Seconds between two times in which the job did nothing but load a checkpoint: the ledger's, not a rank's own."""
    inside = (s for s in ledger.segments if s.bucket == "restore" and start <= s.start < end)
    return sum(segment.end - segment.start for segment in inside)


def _restores(overcome: Sequence[_Overcome]) -> Iterator[tuple[str, float]]:
    by_tier: dict[str, list[float]] = {}
    for one in overcome:
        for event in one.healed.points("restore")[:1]:
            by_tier.setdefault(event.text("tier") or "shared", []).append(one.restored_s)
    for tier, seconds in by_tier.items():
        yield f"{tier}.restore_s", fmean(seconds)


def _cures(overcome: Sequence[_Overcome], run: RunConfig, inputs: Inputs) -> Iterator[tuple[str, float]]:
    """Detection of the kinds that struck; restarts of the layers that acted, also for kinds that did not strike."""
    standby_s = inputs["import_s"] if run.recovery.standby else 0.0
    by_pair: dict[tuple[str, str], list[_Overcome]] = {}
    by_layer: dict[str, list[_Overcome]] = {}
    for one in overcome:
        by_pair.setdefault(one.pair, []).append(one)
        by_layer.setdefault(one.pair[1], []).append(one)
    for kind, layers in CURED_BY.items():
        for layer in layers:
            shown = by_pair.get((kind, layer))
            if shown:
                yield cure_name(kind, layer, "detection_s"), fmean(one.detection_s for one in shown)
            if like := shown or by_layer.get(layer):
                # What a standby saves is put back: inputs are without one, and a choice may have it.
                more = standby_s if layer == IN_JOB else 0.0
                yield cure_name(kind, layer, "restart_s"), fmean(one.restart_s for one in like) + more


def _not_cured(overcome: Sequence[_Overcome], run: RunConfig) -> Iterator[tuple[str, str]]:
    """(kind, layer) of layers that were switched on and left the kind to a higher one."""
    on: Mapping[str, bool] = {IN_PROCESS: run.recovery.in_process, IN_JOB: run.recovery.in_job, NODE: True}
    seen: dict[str, set[str]] = {}
    for one in overcome:
        kind, layer = one.pair
        seen.setdefault(kind, set()).add(layer)
    for kind, acted in seen.items():
        for layer in CURED_BY.get(kind, ()):
            if layer in acted:
                break
            if on[layer]:
                yield kind, layer
