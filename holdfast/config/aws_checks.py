"""Checks between fields about what is built on AWS. Like checks.py; empty for node types that are not EC2's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from ipaddress import IPv4Network

from holdfast.config import fsx, prices
from holdfast.config.instances import CATALOG
from holdfast.config.problems import Problem
from holdfast.config.schema import RunConfig

_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))
"""Ranges that are nobody's address on the internet."""
SYSTEM_NODE_CORES = 1
"""Of a system node, not for pods of one's own: EKS reserves 0.07 to 0.11 of its cores (by its published rule, for 2 to
16), and what runs on every node asks for some of the rest."""


def aws_problems(config: RunConfig) -> list[Problem]:
    """Every problem of the cluster that `cdk deploy` would build."""
    instance = CATALOG.get(config.cluster.instance_type)
    if instance is None or not instance.ec2:
        return []
    rules = (
        _zones,
        _vpc,
        _endpoint,
        _system_nodes,
        _preparations,
        _capacity,
        _lustre,
        _lustre_efa,
        _slow_writes,
        _consent,
        _cost,
    )
    return [problem for rule in rules for problem in rule(config)]


def _zones(c: RunConfig) -> Iterator[Problem]:
    a = c.aws
    for index, zone in enumerate(a.zones):
        if zone[:-1] != a.region:
            yield Problem(
                f"aws.zones.{index}", zone, f"it is not in aws.region={a.region}", f"use {a.region}{zone[-1]}"
            )
        if zone in a.zones[:index]:
            yield Problem(f"aws.zones.{index}", zone, "it stands twice", "name different zones")
    if a.gpu_zone not in a.zones:
        why = f"the VPC has aws.zones={', '.join(a.zones)}"
        yield Problem("aws.gpu_zone", a.gpu_zone, why, "use one of them, or add it there")


def _network(cidr: str) -> IPv4Network | None:
    try:
        return IPv4Network(cidr)
    except ValueError:
        return None


def _vpc(c: RunConfig) -> Iterator[Problem]:
    network = _network(c.aws.vpc_cidr)
    if network is None:
        yield Problem("aws.vpc_cidr", c.aws.vpc_cidr, "it is not a network address", "write it like 10.64.0.0/16")
    elif not 16 <= network.prefixlen <= 17:
        why = "a VPC has at most a /16, and three private subnets of /19 and the public ones need a /17"
        yield Problem("aws.vpc_cidr", c.aws.vpc_cidr, why, "use a /16 or a /17")


def _endpoint(c: RunConfig) -> Iterator[Problem]:
    a = c.aws
    if a.endpoint == "allow_listed" and not a.allowed_cidrs:
        why = "aws.endpoint=allow_listed lets in only what is listed, and an empty list means everyone to EKS"
        yield Problem(
            "aws.allowed_cidrs", (), why, "list your ranges, like 203.0.113.0/24; or use aws.endpoint: private"
        )
    if a.endpoint == "private" and a.allowed_cidrs:
        why = "aws.endpoint=private has no public address, so that the list would do nothing"
        yield Problem("aws.allowed_cidrs", a.allowed_cidrs, why, "remove it, or use aws.endpoint: allow_listed")
    for index, cidr in enumerate(a.allowed_cidrs):
        key, network = f"aws.allowed_cidrs.{index}", _network(cidr)
        if network is None:
            yield Problem(key, cidr, "it is not a network address", "write it like 203.0.113.0/24 or 203.0.113.7/32")
        elif network.prefixlen == 0:
            yield Problem(key, cidr, "it opens the API server to the whole internet", "list the ranges that need it")
        elif any(network.overlaps(private) for private in _PRIVATE):
            why = "EKS accepts public ranges only; from inside the VPC the server can be reached anyway"
            yield Problem(key, cidr, why, "remove it, or give the address under which you appear on the internet")


def _system_nodes(c: RunConfig) -> Iterator[Problem]:
    kind = c.aws.system_instance_type
    if kind not in prices.SYSTEM_HOURLY_USD:
        fix = f"use one of: {', '.join(prices.SYSTEM_HOURLY_USD)}"
        yield Problem("aws.system_instance_type", kind, "no price and no size is known for it", fix)


def _preparations(c: RunConfig) -> Iterator[Problem]:
    kind = c.aws.system_instance_type
    most = prices.SYSTEM_CORES.get(kind, 0) - SYSTEM_NODE_CORES
    for number, preparation in enumerate(c.data.prepare):
        if kind in prices.SYSTEM_CORES and preparation.workers > most:
            why = (
                f"each asks for a core of a system node, and aws.system_instance_type={kind} has {most + 1}, one of "
                "them for what runs on every node: the pod could never be placed"
            )
            fix = f"use at most {most}, or a larger aws.system_instance_type"
            yield Problem(f"data.prepare.{number}.workers", preparation.workers, why, fix)


def _capacity(c: RunConfig) -> Iterator[Problem]:
    capacity, needed = c.aws.capacity, c.pods
    if capacity.max_nodes is not None and capacity.max_nodes < needed:
        why = f"cluster.nodes={c.cluster.nodes} and recovery.spares={c.recovery.spares} need {needed}"
        yield Problem("aws.capacity.max_nodes", capacity.max_nodes, why, f"use at least {needed}, or remove it")
    full = prices.full_size(c)
    if capacity.desired_nodes > full:
        why = (
            f"the group ends at aws.capacity.max_nodes={capacity.max_nodes} (without it: "
            f"cluster.nodes={c.cluster.nodes} + recovery.spares={c.recovery.spares})"
        )
        yield Problem("aws.capacity.desired_nodes", capacity.desired_nodes, why, f"use at most {full}")
    if capacity.mode != "on_demand" and capacity.placement_group:
        why = f"aws.capacity.mode={capacity.mode} has its place already; in another group EC2 would not find it"
        yield Problem("aws.capacity.placement_group", True, why, "remove it, or use false")


def _lustre(c: RunConfig) -> Iterator[Problem]:
    s = c.storage
    if s.fsx.metadata_iops is not None and s.deployment_type != "PERSISTENT_2":
        why = f"storage.deployment_type={s.deployment_type} has no metadata configuration"
        yield Problem("storage.fsx.metadata_iops", s.fsx.metadata_iops, why, "remove it, or use PERSISTENT_2")
    if s.fsx.efa and s.deployment_type != "PERSISTENT_2":
        why = f"storage.deployment_type={s.deployment_type} cannot have EFA"
        yield Problem("storage.fsx.efa", True, why, "use false, or PERSISTENT_2")


def _lustre_efa(c: RunConfig) -> Iterator[Problem]:
    s = c.storage
    if not s.fsx.efa or s.deployment_type != "PERSISTENT_2":
        return
    if not c.instance.efa:
        why = f"cluster.instance_type={c.cluster.instance_type} is used without EFA"
        yield Problem("storage.fsx.efa", True, why, "use false")
    step = fsx.EFA_SIZE_STEP_GIB.get(s.throughput_mbps_per_tib or 0)
    if step and s.capacity_gib % step:
        speed = f"storage.throughput_mbps_per_tib={s.throughput_mbps_per_tib}"
        why = f"storage.fsx.efa with {speed} needs multiples of {step}"
        above = -(-s.capacity_gib // step) * step
        yield Problem("storage.capacity_gib", s.capacity_gib, why, f"use {above}, or storage.fsx.efa: false")


def _slow_writes(c: RunConfig) -> Iterator[Problem]:
    if c.checkpoint.mode == "async" and c.training.expected_step_s is None:
        why = f"whether a save is over after checkpoint.interval_steps={c.checkpoint.interval_steps} depends on it"
        fix = "give the seconds that one step should take; the log of any run shows them"
        yield Problem("training.expected_step_s", None, why, fix)
        return
    why_slow = fsx.slow_write(c)
    if why_slow and not c.storage.accept_slow_writes:
        why = f"{why_slow}; storage.accept_slow_writes gives no reason to bear it"
        yield Problem("checkpoint.interval_steps", c.checkpoint.interval_steps, why, fsx.remedy(c))


def _consent(c: RunConfig) -> Iterator[Problem]:
    if c.aws.production and c.aws.allow_data_loss:
        why = "aws.production=True protects what this would let `cdk destroy` delete"
        yield Problem("aws.allow_data_loss", True, why, "use false, or aws.production: false")


def _cost(c: RunConfig) -> Iterator[Problem]:
    if c.cost.expires_at is not None:
        try:
            date.fromisoformat(c.cost.expires_at)
        except ValueError:
            yield Problem("cost.expires_at", c.cost.expires_at, "there is no such day", "write it like 2027-01-31")
    limit, price = c.cost.max_hourly_usd, prices.estimate(c, prices.full_size(c))
    if limit is not None and price.hourly_usd > limit:
        parts = ", ".join(f"{what} ${usd:,.2f}" for what, usd in price.parts)
        why = (
            f"at full size the estimate is ${price.hourly_usd:,.2f} an hour ({parts}; "
            f"cluster.instance_type={c.cluster.instance_type}, cost.node_hourly_usd={c.cost.node_hourly_usd}, "
            f"aws.system_instance_type={c.aws.system_instance_type}, "
            f"aws.capacity.max_nodes={c.aws.capacity.max_nodes}, "
            f"cluster.nodes={c.cluster.nodes}, recovery.spares={c.recovery.spares}, "
            f"storage.capacity_gib={c.storage.capacity_gib}, "
            f"storage.throughput_mbps_per_tib={c.storage.throughput_mbps_per_tib})"
        )
        yield Problem("cost.max_hourly_usd", limit, why, "raise it, or build less")
