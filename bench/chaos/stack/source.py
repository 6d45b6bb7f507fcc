"""Where the faults of a schedule come from, how a job with them must end, and whether each was noticed.

Kinds, phases and promises are those of the fault catalogue; nothing here knows them by itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.config import ConfigError, RunConfig, names
from holdfast.config.fault_catalogue import End
from holdfast.faults.schedule import Detected, Expected, draw, expected
from holdfast.goodput.ledger import Ledger
from holdfast.goodput.timeline import Timeline

__all__ = ["END_CODES", "End", "Expected", "damages_commits", "draw_faults", "expected", "noticed"]

TERMINAL_CHANCE = 0.08
"""Of a schedule to have a fault that ends the job for good; all others must end with the weights of one in peace."""
TERMINAL_KINDS = ("nan_loss",)
TRIES = 50
END_CODES: Mapping[End, int] = {
    "bit_equal": names.EXIT_COMPLETE,
    "within_tolerance": names.EXIT_COMPLETE,
    "none": names.EXIT_COMPLETE,
    "terminal": names.EXIT_GIVE_UP,
}
"""Exit code of `holdfast run`. none promises nothing of the weights, and the job must still come to its end."""
_BY_AN_EVENT = {"bad_loss": "bad_loss", "save_failed": "save_failed"}
"""Detector -> the event that it leaves. Those that end an attempt leave a recovery in the ledger instead."""
_BY_THE_WEIGHTS = ("checksum", "replaced", "nobody")
"""Detectors whose failure shows at the end: a damaged checkpoint that was loaded makes other weights, and a dead writer
that was not replaced commits nothing more."""


def draw_faults(
    seed: int,
    *,
    nodes: int,
    ranks_per_node: int,
    steps: int,
    settings: Sequence[str],
    load: Callable[[Sequence[str]], RunConfig],
) -> tuple[dict[str, Any], ...]:
    """One to four faults that the config allows, in order of step. The same for the same seed.

    settings: overrides without faults. load: makes a config of overrides, or raises ConfigError.
    """
    chance = random.Random(f"stack-faults-{seed}")
    refused: ConfigError | None = None
    for _ in range(TRIES):
        one_of = partial(draw, nodes=nodes, ranks_per_node=ranks_per_node, steps=steps)
        faults = one_of(chance.randrange(2**31))
        if chance.random() < TERMINAL_CHANCE:
            faults[-1:] = one_of(chance.randrange(2**31), count=1, kinds=TERMINAL_KINDS)
        try:
            config = load([*settings, f"faults={json.dumps(faults)}"])
        except ConfigError as error:
            refused = error  # e.g. a phase that this config has not
            continue
        if expected(faults, config).end != "none":
            return tuple(faults)
    raise RuntimeError(f"seed {seed}: none of {TRIES} draws fits {' '.join(settings)}: {refused}")


def damages_commits(faults: Sequence[dict[str, Any]]) -> bool:
    """Whether a fault damages what is committed: then the newest commit need not be whole at every moment."""
    return any(fault["kind"] == "bit_flip_stored" for fault in faults)


def noticed(one: Detected, timeline: Timeline, ledger: Ledger) -> bool:
    """Whether what must notice a fault that struck did so, on record."""
    if one.detected_by in _BY_THE_WEIGHTS:
        return True
    if one.detected_by in _BY_AN_EVENT:
        return _told(one, _BY_AN_EVENT[one.detected_by], timeline, ledger)
    recovery = next((recovery for recovery in ledger.recoveries if recovery.fault.id == one.id), None)
    if recovery is None:
        return not one.ends_attempt
    if recovery.detected_s is not None:
        return True
    later = any(attempt.begin > recovery.fault.at for attempt in ledger.attempts)
    return not later and any(attempt.complete for attempt in ledger.attempts)  # it came too late to matter


def _told(one: Detected, event: str, timeline: Timeline, ledger: Ledger) -> bool:
    """Whether the event came after the fault. A save that another fault ends with its attempt tells of neither."""
    struck = [told.start for told in timeline.named("fault", "disturbance") if told.text("id") == one.id]
    at = min(struck, default=0.0)
    return any(told.start >= at for told in timeline.named(event)) or any(a.begin > at for a in ledger.attempts)
