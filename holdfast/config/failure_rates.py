"""Published failure rates, as presets for planning. Each names its source, what it counts and where it was measured.

Hardware failures grow with the number of nodes. Failures of software and of its users do not: they belong to the job,
so they are stored with the size at which they were seen and must not be scaled with the fleet. Meta's cluster shows
why: its node rate alone predicts 28.8 h between failures for 1,024 GPUs, and 7.9 h were measured.
"""

from __future__ import annotations

from dataclasses import dataclass


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


_LLAMA_NODE_DAYS = 54 * 2048
_LLAMA_SOFTWARE = 54 + 2
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
            hardware_per_node_day=(419 - _LLAMA_SOFTWARE) / _LLAMA_NODE_DAYS,
            software_per_node_day=_LLAMA_SOFTWARE / _LLAMA_NODE_DAYS,
            nodes=2048,
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
