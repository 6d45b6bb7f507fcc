"""What a plan starts from: named durations, each with the place that it was taken from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.goodput.attempts import IN_JOB, IN_PROCESS, NODE

MEASURED, CONFIGURED, COMPUTED, ASSUMED, PUBLISHED = "measured", "configured", "computed", "assumed", "published"

CURED_BY: Mapping[str, tuple[str, ...]] = {
    "exception": (IN_PROCESS, IN_JOB, NODE),
    "hang": (IN_PROCESS, IN_JOB, NODE),
    "rank_sigkill": (IN_JOB, NODE),
    "bad_gpu": (IN_JOB, NODE),
    "bad_link": (IN_JOB, NODE),
    "node_loss": (IN_JOB, NODE),
    "control_loss": (NODE,),
    "planned": (IN_JOB, NODE),
}
"""Kind of fault -> the layers that cure it, in the order in which they are tried."""


@dataclass(frozen=True)
class Input:
    """One number and its basis."""

    value: float
    """Seconds, unless the name says otherwise."""
    basis: str
    """One of the words above, and where it stands or why it is so."""

    def times(self, factor: float, why: str) -> Input:
        """The same, scaled."""
        return Input(self.value * factor, f"{self.basis}; {why}")


@dataclass(frozen=True)
class Inputs:
    """All that a plan rests on.

    by_name: step_s, data_stall_s, first_step_s, init_s, shutdown_s, import_s (what a standby saves per restart),
    repair_s (until a failed node is back), person_s, {shared,local}.{blocked,hidden,background,restore}_s,
    local.outlives_node (share), {kind}.{layer}.{detection,restart}_s. Restarts are those without a standby.
    """

    by_name: Mapping[str, Input]
    not_cured: frozenset[tuple[str, str]] = frozenset()
    """(kind, layer) that a measured run has shown not to cure it, against CURED_BY."""
    kept: tuple[str, ...] = ()
    """After a calibration: names that the run did not show, which keep their defaults."""

    def __getitem__(self, name: str) -> float:
        return self.by_name[name].value

    def with_values(
        self, values: Mapping[str, Input], not_cured: frozenset[tuple[str, str]] = frozenset(), *, tell: bool = True
    ) -> Inputs:
        """Others in place of some. tell: name those that stay as they are in `kept`."""
        kept = tuple(name for name in self.by_name if name not in values) if tell else self.kept
        return Inputs({**self.by_name, **values}, self.not_cured | not_cured, kept)


def cure_name(kind: str, layer: str, what: str) -> str:
    """Name of a cure's `detection_s` or `restart_s`."""
    return f"{kind}.{layer}.{what}"
