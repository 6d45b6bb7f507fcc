"""What must become of a run with given faults: who notices each one, within which limit, and how the run ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config.fault_catalogue import Detector, End, catalogue
from holdfast.config.faults import OF_A_SAVE, OF_AN_ATTEMPT, Fault
from holdfast.config.schema import RunConfig

__all__ = ["Detected", "Expected", "expected"]

WORST_FIRST: tuple[End, ...] = ("none", "terminal", "within_tolerance", "bit_equal")


@dataclass(frozen=True)
class Detected:
    """What is expected of one fault. limit: dotted key of the config within which it is noticed; limit_s: its value;
    None: nobody has to notice. certain: it fires in every run; others need a restart, or a second checkpoint.
    ends_attempt: the ranks must begin another attempt."""

    id: str
    detected_by: str
    limit: str
    limit_s: float | None
    certain: bool
    ends_attempt: bool


@dataclass(frozen=True)
class Expected:
    """end: of the whole run, the weakest promise of all its faults. detected: of each fault, in the order given."""

    end: End
    detected: tuple[Detected, ...]

    @property
    def detected_by(self) -> Mapping[str, str]:
        """Id of a fault -> its detector."""
        return {one.id: one.detected_by for one in self.detected}


def expected(faults: Sequence[Mapping[str, Any]], config: RunConfig) -> Expected:
    """What the catalogue promises of these faults in a run of this config. faults: entries of `faults:`, allowed ones
    (fault_problems says which are not). Raises pydantic's ValidationError for what is no fault.
    """
    given = [Fault.model_validate(dict(fault)) for fault in faults]
    ends = [_end(fault, config) for fault in given]
    end = min((*ends, _end_of_all(given, config)), key=WORST_FIRST.index)
    stops = [fault.step for fault, one in zip(given, ends, strict=True) if one == "terminal"]
    return Expected(end, tuple(_detected(fault, config, min(stops, default=None)) for fault in given))


def _end(fault: Fault, c: RunConfig) -> End:
    """How a run with this fault alone ends."""
    if fault.kind == "nan_loss" or (fault.kind == "loss_spike" and _spike_is_seen(fault, c)):
        # Without that update, or without the batches before it, the weights are good ones, and others.
        return "terminal" if c.recovery.on_bad_loss == "stop" else "none"
    if fault.kind == "node_loss" and c.elastic and c.recovery.spares == 0:
        return "within_tolerance"
    if fault.kind == "bit_flip_stored" and fault.phase == "persist" and save_of(fault, c) == c.training.steps:
        return "none"  # the result itself is damaged, and nobody restores it
    return catalogue().row(fault.kind, fault.phase).end


def _end_of_all(faults: Sequence[Fault], c: RunConfig) -> End:
    """What faults do together that none of them does alone: the stop rules count them, and retention has few steps."""
    ending = [fault for fault in faults if catalogue().entries[fault.kind].ends == "attempt"]
    places = Counter(0 if fault.phase in OF_AN_ATTEMPT else save_of(fault, c) for fault in ending)
    if max(places.values(), default=0) >= c.recovery.same_step_limit:
        return "none"
    if len(ending) >= c.recovery.max_restarts_without_progress:
        return "none"
    failing = [fault for fault in faults if _detector(fault, c).name in ("save_failed", "replaced")]
    if len(failing) >= c.checkpoint.max_failed_saves or sum(fault.kind == "bit_flip_stored" for fault in faults) > 1:
        return "none"
    return "bit_equal"


def save_of(fault: Fault, c: RunConfig) -> int:
    """The step after which it strikes, if its phase is one of a save; else its step."""
    if fault.phase not in OF_A_SAVE:
        return fault.step
    every = c.checkpoint.interval_steps
    return min(-(-fault.step // every) * every, c.training.steps)


def _spike_is_seen(fault: Fault, c: RunConfig) -> bool:
    return c.recovery.loss_spike_factor is not None and fault.step > c.recovery.loss_spike_window_steps


def _detector(fault: Fault, c: RunConfig) -> Detector:
    name = catalogue().row(fault.kind, fault.phase).detected_by
    if fault.kind == "loss_spike" and _spike_is_seen(fault, c):
        name = "bad_loss"
    if fault.kind == "slow_disk" and fault.for_s >= c.checkpoint.persist_timeout_s:
        name = "save_failed"
    if fault.kind == "rank_sigstop" and fault.for_s >= c.recovery.process_group_timeout_s:
        name = "collective"
    return catalogue().detectors[name]


def _detected(fault: Fault, c: RunConfig, stops_at: int | None) -> Detected:
    detector = _detector(fault, c)
    first = fault.step <= c.recovery.warmup_steps  # those behind a restart are not known here
    limit = detector.limit(fault.phase, c.recovery.in_process, in_first_steps=first)
    value = _value(c, limit) if limit else None
    ends_attempt = catalogue().entries[fault.kind].ends == "attempt" or detector.name == "collective"
    reached = stops_at is None or fault.step <= stops_at
    return Detected(fault.id, detector.name, limit, value, reached and _is_certain(fault), ends_attempt)


def _is_certain(fault: Fault) -> bool:
    return fault.kind != "bit_flip_stored" and not (fault.phase in OF_AN_ATTEMPT and fault.step > 1)


def _value(c: RunConfig, key: str) -> float:
    section, name = key.split(".")
    return float(getattr(getattr(c, section), name))
