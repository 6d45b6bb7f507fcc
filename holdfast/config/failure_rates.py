"""Published failure rates, as presets for planning. Each names its source, what it counts and where it was measured.

Hardware failures grow with the number of nodes. Failures of software and of its users do not: they belong to the job,
so they are stored with the size at which they were seen and must not be scaled with the fleet. Meta's cluster shows
why: its node rate alone predicts 28.8 h between failures for 1,024 GPUs, and 7.9 h were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.config.problems import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A way in which a job is interrupted."""

    meaning: str
    takes_node: bool
    """The node cannot be used again before it has been repaired or replaced."""
    announced: bool = False
    """Known beforehand, so that the job saves first and loses no work."""


FAULT_KINDS: Mapping[str, FaultKind] = {
    "exception": FaultKind(meaning="a rank raises: a bug, a dependency that does not answer", takes_node=False),
    "rank_sigkill": FaultKind(meaning="a rank's process is killed, by the OOM killer for one", takes_node=False),
    "hang": FaultKind(meaning="ranks wait for a collective that never ends; no hardware is at fault", takes_node=False),
    "bad_gpu": FaultKind(meaning="a GPU fails, and its ranks die with it", takes_node=True),
    "bad_link": FaultKind(meaning="a NIC, cable or switch port fails, and collectives hang", takes_node=True),
    "node_loss": FaultKind(meaning="a node vanishes", takes_node=True),
    "control_loss": FaultKind(meaning="the control pod vanishes", takes_node=False),
    "planned": FaultKind(
        meaning="maintenance or a change of the program, at a time that is known", takes_node=False, announced=True
    ),
}
"""The kinds that trainer/faults can inject, and those of real hardware that differ in what cures them."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A row of a published table of interruptions."""

    name: str
    count: int
    kind: str
    """Key of FAULT_KINDS: our reading of what such a failure does to a job."""


LLAMA3_CAUSES: tuple[Cause, ...] = (
    Cause(name="faulty GPU", count=148, kind="bad_gpu"),
    Cause(name="GPU HBM3 memory", count=72, kind="bad_gpu"),
    Cause(name="software bug", count=54, kind="exception"),
    Cause(name="network switch or cable", count=35, kind="bad_link"),
    Cause(name="unplanned host maintenance", count=32, kind="node_loss"),
    Cause(name="GPU SRAM memory", count=19, kind="bad_gpu"),
    Cause(name="GPU system processor", count=17, kind="bad_gpu"),
    Cause(name="NIC", count=7, kind="bad_link"),
    Cause(name="NCCL watchdog timeout, cause unknown", count=7, kind="hang"),
    Cause(name="silent data corruption", count=6, kind="bad_gpu"),
    Cause(name="GPU thermal interface and sensor", count=6, kind="bad_gpu"),
    Cause(name="SSD", count=3, kind="node_loss"),
    Cause(name="power supply", count=3, kind="node_loss"),
    Cause(name="server chassis", count=2, kind="node_loss"),
    Cause(name="IO expansion board", count=2, kind="node_loss"),
    Cause(name="dependency", count=2, kind="exception"),
    Cause(name="CPU", count=2, kind="node_loss"),
    Cause(name="system memory", count=2, kind="node_loss"),
)
"""Unexpected interruptions of Llama 3 405B in 54 days on 16,384 H100 (arXiv 2407.21783, table 5), by their counts. Its
printed percentages contradict them (148 of 419 is 35.3 %, not 30.1 %), so nothing here is made from those."""
LLAMA3_PLANNED = 47
"""Its planned interruptions in the same time."""
LLAMA3_DAYS = 54
LLAMA3_NODES = 2048
_SOFTWARE_KINDS = ("exception",)


def kind_counts(*, software: bool) -> dict[str, int]:
    """Llama 3's interruptions by kind: those of software and its users, or all others."""
    counts: dict[str, int] = {}
    for cause in LLAMA3_CAUSES:
        if (cause.kind in _SOFTWARE_KINDS) is software:
            counts[cause.kind] = counts.get(cause.kind, 0) + cause.count
    return counts


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """Failures per day, hardware and software apart."""

    name: str
    hardware_per_node_day: float
    """Per node of 8 GPUs and day. Scales with the number of nodes."""
    software_per_node_day: float = 0.0
    """Per node and day at the size of `nodes`; software_per_job_day is what a job of any size should expect."""
    nodes: int
    """Nodes of 8 GPUs on which it was measured."""
    source: str
    """Where it was published; "quoted" if read in a text that cites it, "computed" if derived from its numbers."""

    @property
    def software_per_job_day(self) -> float:
        """Failures of software and users per day, for the whole job."""
        return self.software_per_node_day * self.nodes


_LLAMA_NODE_DAYS = LLAMA3_DAYS * LLAMA3_NODES
_LLAMA_SOFTWARE = sum(kind_counts(software=True).values())
"""Rows "software bug" and "dependency" of its table 5; 7 NCCL watchdog timeouts of unknown cause count as hardware."""
_RSC1_HARDWARE = 6.50e-3

FAILURE_RATES: dict[str, FailureRate] = {
    rate.name: rate
    for rate in (
        FailureRate(name="none", hardware_per_node_day=0.0, nodes=1, source="no failures"),
        FailureRate(
            name="rsc1",
            hardware_per_node_day=_RSC1_HARDWARE,
            nodes=2048,
            source="Meta RSC-1, A100, arXiv 2410.21680: node failures per node-day (quoted)",
        ),
        FailureRate(
            name="rsc1-measured",
            hardware_per_node_day=_RSC1_HARDWARE,
            software_per_node_day=24 / 7.9 / 128 - _RSC1_HARDWARE,
            nodes=128,
            source="Meta RSC-1, arXiv 2410.21680: 7.9 h between failures of 1,024-GPU jobs; what the node rate does "
            "not explain is taken as software (quoted, computed)",
        ),
        FailureRate(
            name="rsc2",
            hardware_per_node_day=2.34e-3,
            nodes=1024,
            source="Meta RSC-2, A100, vision, arXiv 2410.21680: node failures per node-day (quoted)",
        ),
        FailureRate(
            name="llama3-405b",
            hardware_per_node_day=sum(kind_counts(software=False).values()) / _LLAMA_NODE_DAYS,
            software_per_node_day=_LLAMA_SOFTWARE / _LLAMA_NODE_DAYS,
            nodes=LLAMA3_NODES,
            source="Llama 3, arXiv 2407.21783 section 3.3.4, table 5 by counts: 419 unexpected interruptions in 54 "
            "days on 16,384 H100, 56 of them software (computed)",
        ),
        FailureRate(
            name="ft-hsdp",
            hardware_per_node_day=24 * 60 / 18 / 12_500,
            nodes=12_500,
            source="FT-HSDP, arXiv 2602.00277: one failure in 18 minutes on 100,000 GPUs (computed)",
        ),
        FailureRate(
            name="lablup-b200",
            hardware_per_node_day=17 / 60 / 63,
            nodes=63,
            source="Lablup, arXiv 2605.09370: 17 hardware failures in about two months on 504 B200 (computed)",
        ),
        FailureRate(
            name="coreweave-h100",
            hardware_per_node_day=8 / 3748.25,
            nodes=128,
            source="CoreWeave, H100: 3,748.25 days per failure and GPU, fitted to 1,024 GPUs (quoted, computed)",
        ),
        FailureRate(
            name="nebius",
            hardware_per_node_day=24 / 56.6 / 375,
            nodes=375,
            source="Nebius: one customer's 3,000 GPUs ran 56.6 h on average between failures (computed)",
        ),
    )
}


MOST_PER_THOUSAND = 100_000.0
"""100 failures per node and day: far beyond any cluster, and above what a chaos test on a small one does."""


def failure_rate(name_or_value: str) -> FailureRate:
    """A preset by name, or failures of node hardware per 1,000 node-days as a number. ConfigError for anything else.

    A bare number says nothing of software, so small jobs get no estimate from it.
    """
    if name_or_value in FAILURE_RATES:
        return FAILURE_RATES[name_or_value]
    fix = f"use one of {', '.join(FAILURE_RATES)}, or failures per 1,000 node-days as a number above 0, like 6.5"
    try:
        per_thousand = float(name_or_value)
    except ValueError:
        raise ConfigError([Problem("failure rate", name_or_value, "there is no such preset", fix)]) from None
    if not 0 < per_thousand <= MOST_PER_THOUSAND:
        why = f"failures per 1,000 node-days are above 0 and at most {MOST_PER_THOUSAND:,.0f}"
        raise ConfigError([Problem("failure rate", name_or_value, why, fix)])
    return FailureRate(
        name=f"{per_thousand:g} per 1,000 node-days",
        hardware_per_node_day=per_thousand / 1000,
        nodes=1,
        source="given by the user",
    )
