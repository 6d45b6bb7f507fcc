"""Profiles that overrides break in one way each: at least one for every rule between fields."""

from __future__ import annotations

from typing import NamedTuple

IN_PROCESS = "recovery.in_process_"
P5X2, P5X8 = "llama3-8b-p5x2", "llama3-8b-p5x8"
LISTED = "aws.endpoint=allow_listed"
EVERY = "training.evaluate_every_steps"


class Case(NamedTuple):
    """A profile that overrides break in one way: the keys that are refused, and fields that the text must name."""

    profile: str
    overrides: tuple[str, ...]
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()


CASES = [
    Case("cpu-test", ("cluster.instance_type=p9.huge",), ("cluster.instance_type",)),
    Case("gpt2-g5x2", ("cluster.ranks_per_node=2",), ("cluster.ranks_per_node",), ("cluster.instance_type",)),
    Case("cpu-test", ("device=cuda",), ("device",), ("cluster.instance_type",)),
    Case("gpt2-g5x2", ("device=cpu",), ("device",), ("cluster.instance_type",)),
    Case("cpu-test", ("data.path=[a]", "data.mixture=[{path: b, weight: 1}]"), ("data.mixture",), ("data.path",)),
    Case(
        "cpu-test",
        ("data.validation_fraction=0.1", "data.validation_path=[a]"),
        ("data.validation_fraction",),
        ("data.validation_path",),
    ),
    Case("cpu-test", (f"{EVERY}=5",), (EVERY,), ("data.validation_fraction", "data.validation_path")),
    Case(
        "cpu-test",
        ("data.prepare=[{source: a, to: x}, {source: b, to: x/}]",),
        ("data.prepare.1.to",),
        ("data.prepare.0.to",),
    ),
    Case(
        "cpu-test",
        ("training.global_batch_size=10",),
        ("training.global_batch_size",),
        ("cluster.nodes", "cluster.ranks_per_node", "training.micro_batch_size"),
    ),
    Case("cpu-test", ("training.warmup_steps=20",), ("training.warmup_steps",), ("training.steps",)),
    Case("cpu-test", ("storage.capacity_gib=1300",), ("storage.capacity_gib",)),
    Case("cpu-test", ("storage.capacity_gib=3600",), ("storage.capacity_gib",)),
    Case(
        "cpu-test",
        ("storage.deployment_type=PERSISTENT_2",),
        ("storage.throughput_mbps_per_tib",),
        ("storage.deployment_type",),
    ),
    Case(
        "cpu-test",
        ("storage.throughput_mbps_per_tib=125",),
        ("storage.throughput_mbps_per_tib",),
        ("storage.deployment_type",),
    ),
    Case(
        "llama3-8b-p5x2",
        ("checkpoint.keep_every_steps=100",),
        ("storage.capacity_gib",),
        ("checkpoint.keep_last", "checkpoint.keep_every_steps", "training.steps"),
    ),
    Case(
        "llama3-8b-p5x2",
        ("checkpoint.persist_timeout_s=400",),
        ("checkpoint.persist_timeout_s",),
        ("storage.capacity_gib", "storage.throughput_mbps_per_tib"),
    ),
    Case(
        "gpt2-g5x2",
        (
            "cluster={instance_type: g6e.12xlarge, nodes: 2, ranks_per_node: 4}",
            "model.hidden_size=4608",
            "model.layers=28",
            "storage.capacity_gib=2400",
            "training.expected_step_s=100",
            "checkpoint.persist_timeout_s=1000",
            "recovery.checkpoint_section_timeout_s=2000",
        ),
        ("checkpoint.mode",),
        ("cluster.nodes", "cluster.instance_type"),
    ),
    Case(
        "cpu-test",
        ("checkpoint.local.interval_steps=5",),
        ("checkpoint.local.interval_steps",),
        ("checkpoint.interval_steps",),
    ),
    Case(
        "cpu-test",
        ("checkpoint.local.interval_steps=1", "checkpoint.mode=sync"),
        ("checkpoint.local.interval_steps",),
        ("checkpoint.mode",),
    ),
    Case("cpu-test", ("checkpoint.local.interval_steps=1", "checkpoint.local.path=/fsx/x"), ("checkpoint.local.path",)),
    Case(
        "cpu-test",
        ("checkpoint.local.interval_steps=1", "checkpoint.local.path=/dev/shm/x"),
        ("checkpoint.local.path",),
        ("cluster.instance_type",),
    ),
    Case(
        "gpt2-g5x2",
        ("checkpoint.local.interval_steps=10",),
        ("checkpoint.local.path",),
        ("cluster.instance_type",),
    ),
    Case(
        P5X2,
        ("checkpoint.local.interval_steps=100", "checkpoint.local.path=/dev/shm/local"),
        ("checkpoint.local.keep_last",),
        ("cluster.nodes", "cluster.instance_type", "checkpoint.local.replicate"),
    ),
    Case(
        P5X2,
        ("checkpoint.local.interval_steps=100", "checkpoint.local.keep_last=400"),
        ("checkpoint.local.keep_last",),
        ("cluster.nodes", "cluster.instance_type", "checkpoint.local.replicate"),
    ),
    Case(
        "cpu-test",
        ("cluster.capacity_ends_at=2026-12-24T11:30:00Z", "recovery.leave_before_s=6"),
        ("recovery.leave_before_s",),
        ("cluster.capacity_ends_at", "recovery.term_timeout_s"),
    ),
    Case("cpu-test", ("recovery.term_timeout_s=10",), ("recovery.term_timeout_s",), ("cluster.grace_period_s",)),
    Case(
        "cpu-test",
        ("checkpoint.persist_timeout_s=40",),
        ("checkpoint.persist_timeout_s",),
        ("recovery.checkpoint_section_timeout_s",),
    ),
    Case(
        "cpu-demo", (f"{IN_PROCESS}interval_s=4",), (f"{IN_PROCESS}interval_s",), ("recovery.process_group_timeout_s",)
    ),
    Case("cpu-demo", ("recovery.process_group_timeout_s=8",), ("recovery.process_group_timeout_s",), ("device",)),
    Case("gpu-local", ("recovery.process_group_timeout_s=60",), (f"{IN_PROCESS}barrier_timeout_s",), ("device",)),
    Case(
        "cpu-demo",
        (f"{IN_PROCESS}soft_timeout_s=14",),
        (f"{IN_PROCESS}soft_timeout_s",),
        (f"{IN_PROCESS}hard_timeout_s",),
    ),
    Case(
        "cpu-demo",
        (f"{IN_PROCESS}heartbeat_timeout_s=40",),
        (f"{IN_PROCESS}heartbeat_timeout_s",),
        (f"{IN_PROCESS}barrier_timeout_s",),
    ),
    Case(
        "cpu-demo",
        ("recovery.step_section_timeout_s=14",),
        ("recovery.step_section_timeout_s",),
        (f"{IN_PROCESS}hard_timeout_s",),
    ),
    Case("cpu-test", ("recovery.in_job=false", "recovery.spares=1"), ("recovery.spares",), ("recovery.in_job",)),
    Case(
        "cpu-test",
        ("recovery.standby=true", "recovery.standby_wait_s=60"),
        ("recovery.standby_wait_s",),
        ("recovery.first_section_timeout_s",),
    ),
    Case(
        "cpu-demo",
        ("recovery.in_job=false", "recovery.spares=0"),
        ("recovery.in_process",),
        ("recovery.in_job",),
    ),
    Case("cpu-test", ("reliability.failure_rate=optimism",), ("reliability.failure_rate",)),
    Case("cpu-test", ("resume.step=21",), ("resume.step",), ("training.steps",)),
    Case("cpu-test", ("checkpoint.mode=off", "resume.step=5"), ("checkpoint.mode",), ("resume.step",)),
    Case("cpu-test", ("checkpoint.mode=off", "resume.must_resume=true"), ("checkpoint.mode",), ("resume.must_resume",)),
    Case(
        "cpu-test",
        ("resume.allow_changes=[training.learning_rate, optimizer, data]",),
        ("resume.allow_changes.1",),
    ),
    Case(
        "cpu-test",
        ("faults=[{kind: hang, rank: 2, step: 5}]",),
        ("faults.0.rank",),
        ("cluster.nodes", "cluster.ranks_per_node"),
    ),
    Case("cpu-test", ("faults=[{kind: hang, step: 21}]",), ("faults.0.step",), ("training.steps",)),
    Case("cpu-test", ("faults=[{kind: hang, step: 2}, {kind: hang, step: 2}]",), ("faults.1",)),
    Case(P5X2, ("aws.zones=[us-west-2a, us-east-1a]",), ("aws.zones.1",), ("aws.region",)),
    Case(P5X2, ("aws.zones=[us-west-2a, us-west-2b, us-west-2a]",), ("aws.zones.2",)),
    Case(P5X2, ("aws.gpu_zone=us-west-2c",), ("aws.gpu_zone",), ("aws.zones",)),
    Case(P5X2, ("aws.vpc_cidr=10.64.0.1/16",), ("aws.vpc_cidr",)),
    Case(P5X2, ("aws.vpc_cidr=10.64.0.0/18",), ("aws.vpc_cidr",)),
    Case(P5X2, (LISTED,), ("aws.allowed_cidrs",), ("aws.endpoint",)),
    Case(P5X2, ("aws.allowed_cidrs=[203.0.113.0/24]",), ("aws.allowed_cidrs",), ("aws.endpoint",)),
    Case(P5X2, (LISTED, "aws.allowed_cidrs=[203.0.113.0/24, 0.0.0.0/0]"), ("aws.allowed_cidrs.1",)),
    Case(P5X2, (LISTED, "aws.allowed_cidrs=[203.0.113.0/33]"), ("aws.allowed_cidrs.0",)),
    Case(P5X2, (LISTED, "aws.allowed_cidrs=[10.0.0.0/8]"), ("aws.allowed_cidrs.0",)),
    Case(P5X2, ("aws.system_instance_type=m7g.xlarge",), ("aws.system_instance_type",)),
    Case(P5X2, ("data.prepare=[{source: a, to: b, workers: 4}]",), ("data.prepare.0.workers",)),
    Case(P5X8, ("aws.capacity.max_nodes=8",), ("aws.capacity.max_nodes",), ("cluster.nodes", "recovery.spares")),
    Case(
        P5X2,
        ("aws.capacity.desired_nodes=3",),
        ("aws.capacity.desired_nodes",),
        ("aws.capacity.max_nodes", "cluster.nodes", "recovery.spares"),
    ),
    Case(
        P5X2,
        ("aws.capacity.mode=capacity_block", "aws.capacity.placement_group=true"),
        ("aws.capacity.placement_group",),
        ("aws.capacity.mode",),
    ),
    Case(P5X2, ("storage.fsx.metadata_iops=1500",), ("storage.fsx.metadata_iops",), ("storage.deployment_type",)),
    Case(P5X2, ("storage.fsx.efa=true",), ("storage.fsx.efa",), ("storage.deployment_type",)),
    Case(
        "gpt2-g5x2",
        (
            "storage={deployment_type: PERSISTENT_2, capacity_gib: 4800, throughput_mbps_per_tib: 1000}",
            "storage.fsx.efa=true",
        ),
        ("storage.fsx.efa",),
        ("cluster.instance_type",),
    ),
    Case(
        P5X8,
        ("storage.fsx.efa=true", "storage.throughput_mbps_per_tib=250"),
        ("storage.capacity_gib",),
        ("storage.fsx.efa", "storage.throughput_mbps_per_tib"),
    ),
    Case(P5X2, ("training.expected_step_s=null",), ("training.expected_step_s",), ("checkpoint.interval_steps",)),
    Case(
        P5X8,
        ("checkpoint.interval_steps=10",),
        ("checkpoint.interval_steps",),
        (
            "storage.deployment_type",
            "storage.capacity_gib",
            "storage.throughput_mbps_per_tib",
            "storage.accept_slow_writes",
            "training.expected_step_s",
            "checkpoint.mode",
        ),
    ),
    Case(
        P5X2,
        ("aws.production=true", "aws.allow_data_loss=true"),
        ("aws.allow_data_loss",),
        ("aws.production",),
    ),
    Case(P5X2, ("cost.expires_at=2027-02-30",), ("cost.expires_at",)),
    Case(
        P5X2,
        ("cost.max_hourly_usd=100",),
        ("cost.max_hourly_usd",),
        (
            "cluster.instance_type",
            "cluster.nodes",
            "recovery.spares",
            "aws.capacity.max_nodes",
            "aws.system_instance_type",
            "cost.node_hourly_usd",
            "storage.capacity_gib",
            "storage.throughput_mbps_per_tib",
        ),
    ),
    Case("cpu-test", ("metrics.port=80",), ("metrics.port",)),
    Case("cpu-test", ("metrics.port=29400",), ("metrics.port",), ("cluster.ranks_per_node",)),
    Case("llama3-8b-p5x8", ("metrics.port=29395",), ("metrics.port",), ("cluster.ranks_per_node",)),
    Case("cpu-test", ("metrics.port=29401",), ("metrics.port",), ("cluster.ranks_per_node",)),
    Case(
        "cpu-test",
        ("metrics.port=0", "metrics.prometheus_operator=true"),
        ("metrics.prometheus_operator",),
        ("metrics.port",),
    ),
    Case(
        "cpu-test",
        ("metrics.port=null", "metrics.grafana_dashboard=true"),
        ("metrics.grafana_dashboard",),
        ("metrics.port",),
    ),
    Case(
        "cpu-test",
        ("metrics.alert_no_progress_s=20",),
        ("metrics.alert_no_progress_s",),
        ("recovery.step_section_timeout_s",),
    ),
]
