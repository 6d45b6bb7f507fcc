"""The keys that make a restart short: the standby of each pod, and NVRx's fixed pauses. Part of `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.config.problems import Problem
from holdfast.config.section import Seconds, Section

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig


class Standby(Section):
    """What is ready before a fault happens. docs/adr/0015."""

    standby: bool = False
    """Each worker pod keeps one process that has imported all that a rank needs, and forks it into the ranks of every
    start. Measured on 2 CPU cores: 0.05 s instead of 4 to 5 s per restart (bench/results/cpu/recovery.json). It takes
    about 0.3 GiB of host memory per pod. Only with in_job. An import that initializes CUDA (none does, on one H200)
    would make it useless: a standby that sees that refuses, and ranks start as without it."""
    standby_wait_s: Seconds = 20
    """How long a rank that starts waits for the standby's answer before it starts an interpreter of its own. Covers the
    standby's own imports when the pod is new, which take as long as the rank's would. Below first_section_timeout_s."""
    short_pauses: bool = False
    """NVRx 0.6.0 sleeps 1 s at two places of each restart in the job: between SIGTERM and SIGKILL of processes that are
    mostly gone, and after it has seen that a rendezvous is over. On: it looks every 0.05 s instead, for as long as
    before (trainer/restart/launcher.py). Has no effect on any other version of NVRx."""


def standby_problems(c: RunConfig) -> Iterator[Problem]:
    """What does not fit together."""
    r = c.recovery
    if r.standby and r.standby_wait_s >= r.first_section_timeout_s:
        limit = r.first_section_timeout_s
        why = f"recovery.first_section_timeout_s={limit:g} counts from the start of the rank, and must exceed it"
        yield Problem("recovery.standby_wait_s", r.standby_wait_s, why, f"use less than {limit:g}, or raise the other")
