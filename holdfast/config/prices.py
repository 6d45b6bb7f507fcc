"""What a cluster costs per hour and per month: estimates, to stop a mistake before it is paid for. Not a quotation.

A price that is yours (a Capacity Block, a discount, another region) goes into cost.node_hourly_usd.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.schema import RunConfig

AS_OF = "2026-11"
SOURCE = "public on-demand prices, us-west-2, Linux; collected by hand, not read from AWS"
HOURS_PER_MONTH = 730

NODE_HOURLY_USD: dict[str, float] = {
    # After the cut of June 2025; many pages still show 98.32.
    "p5.48xlarge": 55.04,
    # Sold as Capacity Blocks for the most part; this is their effective rate.
    "p5e.48xlarge": 43.26,
    "p5en.48xlarge": 63.30,
    "p4d.24xlarge": 21.96,
    "p4de.24xlarge": 27.45,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.805,
    "g6.2xlarge": 0.978,
    "g6.4xlarge": 1.323,
    "g6.8xlarge": 2.014,
    "g6.12xlarge": 4.602,
    "g6.16xlarge": 3.397,
    "g6.24xlarge": 6.675,
    "g6.48xlarge": 13.35,
    "g6e.xlarge": 1.861,
    "g6e.2xlarge": 2.242,
    "g6e.4xlarge": 3.004,
    "g6e.8xlarge": 4.529,
    "g6e.12xlarge": 10.493,
    "g6e.16xlarge": 7.577,
    "g6e.24xlarge": 15.066,
    "g6e.48xlarge": 30.131,
}
SYSTEM_HOURLY_USD: dict[str, float] = {
    "m6i.large": 0.096,
    "m6i.xlarge": 0.192,
    "m6i.2xlarge": 0.384,
    "m7i.large": 0.1008,
    "m7i.xlarge": 0.2016,
    "m7i.2xlarge": 0.4032,
    "m7i.4xlarge": 0.8064,
}
"""Also the list of types that a system node may have: x86, and large enough for the control pod and the add-ons."""
SYSTEM_CORES: dict[str, int] = {
    f"{family}.{size}": cores
    for family, sizes in (("m6i", (2, 4, 8)), ("m7i", (2, 4, 8, 16)))
    for size, cores in zip(("large", "xlarge", "2xlarge", "4xlarge"), sizes, strict=False)
}
"""vCPUs of each. All have 4 GiB of memory per vCPU."""
SYSTEM_NODES = 2
CONTROL_PLANE_HOURLY_USD = 0.10
NAT_HOURLY_USD = 0.045
LUSTRE_GB_MONTH_USD: dict[int | None, float] = {None: 0.140, 125: 0.145, 250: 0.210, 500: 0.340, 1000: 0.600}
"""By MB/s per TiB; None is SCRATCH_2."""
LEFT_OUT = "traffic, root volumes, S3, logs and taxes are not in it"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Hourly price of each part of a cluster with so many GPU nodes."""

    nodes: int
    parts: tuple[tuple[str, float], ...]

    @property
    def hourly_usd(self) -> float:
        """All parts together."""
        return sum(price for _, price in self.parts)

    @property
    def monthly_usd(self) -> float:
        """The same, left on for a month of 730 hours."""
        return self.hourly_usd * HOURS_PER_MONTH


def full_size(config: RunConfig) -> int:
    """GPU nodes at the upper limit of their group."""
    return config.aws.capacity.max_nodes or config.pods


def lustre_monthly_usd(capacity_gib: int, mbps_per_tib: int | None) -> float:
    """Price of a file system for a month; None stands for SCRATCH_2. AWS's gigabyte of the price is a GiB."""
    return capacity_gib * LUSTRE_GB_MONTH_USD[mbps_per_tib]


def node_hourly_usd(config: RunConfig) -> float:
    """Price of one GPU node: the user's own, or the estimate. A type without one counts as free; a test finds it."""
    return config.cost.node_hourly_usd or NODE_HOURLY_USD.get(config.cluster.instance_type, 0.0)


def estimate(config: RunConfig, nodes: int) -> Estimate:
    """The hourly price of everything that `cdk deploy` builds, with so many GPU nodes."""
    storage = config.storage
    lustre = lustre_monthly_usd(storage.capacity_gib, storage.throughput_mbps_per_tib) / HOURS_PER_MONTH
    system = SYSTEM_NODES * SYSTEM_HOURLY_USD.get(config.aws.system_instance_type, 0.0)
    return Estimate(
        nodes=nodes,
        parts=(
            (f"{nodes} x {config.cluster.instance_type}", nodes * node_hourly_usd(config)),
            (f"{SYSTEM_NODES} x {config.aws.system_instance_type}", system),
            ("EKS control plane", CONTROL_PLANE_HOURLY_USD),
            ("NAT gateway", NAT_HOURLY_USD),
            (f"FSx {storage.deployment_type}, {storage.capacity_gib} GiB", lustre),
        ),
    )


def lines(config: RunConfig) -> list[str]:
    """The estimate as text: for the size that `cdk deploy` starts with, and for the full size."""
    texts = []
    for what, nodes in (("at deployment", config.aws.capacity.desired_nodes), ("at full size", full_size(config))):
        price = estimate(config, nodes)
        texts.append(f"{what}, {nodes} GPU nodes: ${price.hourly_usd:,.2f} an hour, ${price.monthly_usd:,.0f} a month")
    texts.append(f"estimates of {AS_OF} ({SOURCE}); {LEFT_OUT}")
    return texts
