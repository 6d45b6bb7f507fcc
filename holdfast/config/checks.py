"""Checks that involve more than one field. Each returns problems; none raises, so that all are shown at once.

The text of a problem names every other field that it rests on, with its dotted key: the user sees both ends, and a
problem that rests on a field which is itself broken is left out (load.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from holdfast.config import names, sizing
from holdfast.config.aws_checks import aws_problems
from holdfast.config.data import data_problems
from holdfast.config.elastic import elastic_problems
from holdfast.config.failure_rates import FAILURE_RATES
from holdfast.config.fault_catalogue import fault_problems
from holdfast.config.fields import field_at
from holdfast.config.gpu_memory import gpu_memory_problems
from holdfast.config.instances import CATALOG, Instance
from holdfast.config.metrics import metrics_problems
from holdfast.config.model import model_problems
from holdfast.config.problems import Problem
from holdfast.config.schema import RunConfig
from holdfast.config.standby import standby_problems
from holdfast.config.stop_rules import stop_rule_problems
from holdfast.config.watching import watching_problems


def cross_problems(config: RunConfig) -> list[Problem]:
    """Every problem that lies between fields, in the order of the sections."""
    rules = (_cluster, model_problems, _batch, _storage, _room, _local, _timeouts, _layers, _presets, _resume, _faults)
    more = (stop_rule_problems, watching_problems, standby_problems, elastic_problems, metrics_problems, aws_problems)
    last = (fault_problems, gpu_memory_problems)
    return [problem for rule in (*rules, data_problems, *more, *last) for problem in rule(config)]


def _cluster(c: RunConfig) -> Iterator[Problem]:
    kind, ranks = c.cluster.instance_type, c.cluster.ranks_per_node
    if kind not in CATALOG:
        yield Problem("cluster.instance_type", kind, "it is not in the catalog", f"use one of: {', '.join(CATALOG)}")
        return
    gpus = CATALOG[kind].gpus
    has = f"cluster.instance_type={kind} has {gpus or 'no'} GPUs"
    if gpus and ranks > gpus:
        yield Problem("cluster.ranks_per_node", ranks, f"{has}, and each rank needs one", f"use at most {gpus}")
    if c.device == "cuda" and not gpus:
        yield Problem("device", c.device, has, "use device: cpu, or a GPU instance type")
    if c.device == "cpu" and gpus:
        yield Problem("device", c.device, f"{has} that would be paid for and not used", "use device: cuda")


def _ranks(c: RunConfig) -> str:
    return f"cluster.nodes={c.cluster.nodes} x cluster.ranks_per_node={c.cluster.ranks_per_node}"


def _fewest(c: RunConfig) -> str:
    """The size at which each node has the most of a checkpoint."""
    return f"recovery.min_nodes={c.min_nodes}" if c.elastic else f"cluster.nodes={c.cluster.nodes}"


def _batch(c: RunConfig) -> Iterator[Problem]:
    t = c.training
    per_pass = c.world_size * t.micro_batch_size
    if t.global_batch_size % per_pass:
        why = f"{_ranks(c)} x training.micro_batch_size={t.micro_batch_size} = {per_pass} must divide it"
        yield Problem("training.global_batch_size", t.global_batch_size, why, f"use a multiple of {per_pass}")
    if t.warmup_steps >= t.steps:
        why = f"training.steps={t.steps} must exceed it"
        yield Problem("training.warmup_steps", t.warmup_steps, why, f"use at most {t.steps - 1}")


def _storage(c: RunConfig) -> Iterator[Problem]:
    s = c.storage
    if s.capacity_gib != 1200 and s.capacity_gib % 2400:
        why = "FSx for Lustre sizes are 1200 and multiples of 2400"
        above = -(-s.capacity_gib // 2400) * 2400
        yield Problem("storage.capacity_gib", s.capacity_gib, why, f"use {above}")
    throughput = "storage.throughput_mbps_per_tib"
    if s.deployment_type == "PERSISTENT_2" and s.throughput_mbps_per_tib is None:
        yield Problem(throughput, None, "storage.deployment_type=PERSISTENT_2 needs one", "use 125, 250, 500 or 1000")
    if s.deployment_type == "SCRATCH_2" and s.throughput_mbps_per_tib is not None:
        why = f"storage.deployment_type=SCRATCH_2 has a fixed {sizing.SCRATCH_2_MBPS_PER_TIB}"
        yield Problem(throughput, s.throughput_mbps_per_tib, why, "remove it, or use PERSISTENT_2")


def _room(c: RunConfig) -> Iterator[Problem]:
    """Whether checkpoints fit where they go, in space and in time. On rented nodes only: elsewhere nothing is known."""
    instance = CATALOG.get(c.cluster.instance_type)
    if c.checkpoint.mode == "off" or instance is None or not instance.ec2:
        return
    one, kept = sizing.checkpoint_bytes(c), sizing.kept_checkpoints(c)
    if one * kept > c.storage.capacity_gib * sizing.GIB:
        why = (
            f"{kept} checkpoints of {one / sizing.GIB:.0f} GiB do not fit: "
            f"checkpoint.keep_last={c.checkpoint.keep_last}, "
            f"checkpoint.keep_every_steps={c.checkpoint.keep_every_steps} over training.steps={c.training.steps}, "
            "and one being written"
        )
        fix = f"use at least {-(-one * kept // (2400 * sizing.GIB)) * 2400}, or keep fewer"
        yield Problem("storage.capacity_gib", c.storage.capacity_gib, why, fix)
    write_s = one / sizing.storage_bytes_per_s(c.storage)
    if write_s > c.checkpoint.persist_timeout_s:
        why = (
            f"storage.capacity_gib={c.storage.capacity_gib} with "
            f"storage.throughput_mbps_per_tib={c.storage.throughput_mbps_per_tib} writes {one / 1e9:.0f} GB in "
            f"{write_s:.0f} s at best, so every save would fail"
        )
        yield Problem(
            "checkpoint.persist_timeout_s", c.checkpoint.persist_timeout_s, why, "raise it, or use a faster file system"
        )
    staged = sizing.part_bytes_per_node(c)
    if c.checkpoint.mode == "async" and staged > instance.shm_gib * sizing.GIB:
        why = (
            f"a staged copy takes {staged / sizing.GIB:.0f} GiB of /dev/shm on each of "
            f"{_fewest(c)}, and cluster.instance_type={instance.name} gives it {instance.shm_gib}"
        )
        yield Problem(
            "checkpoint.mode", c.checkpoint.mode, why, "use more nodes or larger ones, or checkpoint.mode: sync"
        )


def _local(c: RunConfig) -> Iterator[Problem]:
    """The tier on the nodes themselves: whether it is of use, has a place, and fits there."""
    local, every = c.checkpoint.local, "checkpoint.local.interval_steps"
    if local.interval_steps is None:
        return
    if c.checkpoint.mode != "async":
        why = f"checkpoint.mode={c.checkpoint.mode}, and local saves are made in the background only"
        yield Problem(every, local.interval_steps, why, "use checkpoint.mode: async, or null")
        return
    if local.interval_steps >= c.checkpoint.interval_steps:
        why = f"checkpoint.interval_steps={c.checkpoint.interval_steps} saves as often to the shared storage"
        fix = f"use less than {c.checkpoint.interval_steps}, or null"
        yield Problem(every, local.interval_steps, why, fix)
    instance = CATALOG.get(c.cluster.instance_type)
    if instance is not None:
        yield from _local_place(c, instance)


def _local_place(c: RunConfig, instance: Instance) -> Iterator[Problem]:
    path, key = c.checkpoint.local.path, "checkpoint.local.path"
    memory = sizing.local_tier_in_memory(c)
    disk = path == names.LOCAL_MOUNT or path.startswith(f"{names.LOCAL_MOUNT}/")
    if not memory and not disk:
        why = f"only {names.LOCAL_MOUNT}, the node's disk, and folders of {names.SHM_MOUNT}, memory, are the node's own"
        yield Problem(key, path, why, f"use {names.LOCAL_MOUNT} or {names.SHM_MOUNT}/local")
    elif memory and not instance.ec2:
        why = f"cluster.instance_type={instance.name}: pods of the local runner share this machine's {names.SHM_MOUNT}"
        yield Problem(key, path, why, f"use {names.LOCAL_MOUNT}")
    elif disk and instance.ec2 and not instance.local_nvme:
        why = f"cluster.instance_type={instance.name} has no NVMe array there"
        yield Problem(key, path, why, f"use {names.SHM_MOUNT}/local, or a type with local disks")
    elif instance.ec2:
        yield from _local_size(c, instance, memory)


def _local_size(c: RunConfig, instance: Instance, memory: bool) -> Iterator[Problem]:
    local, one = c.checkpoint.local, sizing.part_bytes_per_node(c)
    shared = sizing.shared_memory_bytes_per_node(c)
    what = (
        f"{one / sizing.GIB:.0f} GiB on each of {_fewest(c)}, {sizing.local_saves(c)} times "
        f"(checkpoint.local.replicate={local.replicate} doubles it)"
    )
    if one <= instance.shm_gib * sizing.GIB < shared:
        why = (
            f"a second staged copy{f', and {what},' if memory else ''} makes {shared / sizing.GIB:.0f} GiB of "
            f"{names.SHM_MOUNT}, and cluster.instance_type={instance.name} gives it {instance.shm_gib}"
        )
        fix = "use more nodes, a disk, or checkpoint.local.interval_steps: null"
        yield Problem("checkpoint.local.keep_last", local.keep_last, why, fix)
    kept = sizing.local_tier_bytes_per_node(c)
    if not memory and kept > instance.nvme_gb * 1e9:
        why = f"{what} do not fit on the {instance.nvme_gb} GB of cluster.instance_type={instance.name}"
        yield Problem("checkpoint.local.keep_last", local.keep_last, why, "keep fewer, or use more nodes")


def _timeouts(c: RunConfig) -> Iterator[Problem]:
    r, grace = c.recovery, c.cluster.grace_period_s
    if r.term_timeout_s >= grace:
        why = f"cluster.grace_period_s={grace} must exceed it, or Kubernetes kills the save half-way"
        yield Problem("recovery.term_timeout_s", r.term_timeout_s, why, f"use at most {grace - 1}")
    if c.cluster.capacity_ends_at is not None and r.leave_before_s <= r.term_timeout_s:
        why = f"the last save before cluster.capacity_ends_at may take recovery.term_timeout_s={r.term_timeout_s}"
        yield Problem("recovery.leave_before_s", r.leave_before_s, why, f"use more than {r.term_timeout_s}")
    section = r.checkpoint_section_timeout_s
    if r.in_job and c.checkpoint.mode != "off" and c.checkpoint.persist_timeout_s >= section:
        why = f"recovery.checkpoint_section_timeout_s={section:g} must exceed it, or a slow save looks like a hang"
        yield Problem(
            "checkpoint.persist_timeout_s", c.checkpoint.persist_timeout_s, why, "lower it, or raise the other"
        )
    if r.in_process:
        yield from _in_process_order(c)


def lattice(c: RunConfig) -> list[tuple[str, float]]:
    """The in-process timeouts in the order in which they must increase (docs/adr/0002).

    A collective on gloo cannot be aborted, so its timeout must end it before the soft timeout does; NCCL's watchdog
    kills the process, so it must come last. Under ft_launcher the step section is the backstop behind the hard timeout.
    """
    r = c.recovery
    order = [
        ("recovery.in_process_interval_s", r.in_process_interval_s),
        ("recovery.in_process_soft_timeout_s", r.in_process_soft_timeout_s),
        ("recovery.in_process_hard_timeout_s", r.in_process_hard_timeout_s),
        ("recovery.in_process_barrier_timeout_s", r.in_process_barrier_timeout_s),
    ]
    group = ("recovery.process_group_timeout_s", r.process_group_timeout_s)
    if c.device == "cpu":
        order.insert(1, group)
    else:
        order.append(group)
    return order


def _in_process_order(c: RunConfig) -> Iterator[Problem]:
    r = c.recovery
    for (low_key, low), (high_key, high) in pairwise(lattice(c)):
        if low >= high:
            why = f"{high_key}={high:g} must exceed it (recovery.in_process, device={c.device})"
            yield Problem(low_key, low, why, f"use less than {high:g}")
    barrier, hard = r.in_process_barrier_timeout_s, r.in_process_hard_timeout_s
    if r.in_process_heartbeat_timeout_s >= barrier:
        why = f"recovery.in_process_barrier_timeout_s={barrier:g} must exceed it"
        key = "recovery.in_process_heartbeat_timeout_s"
        yield Problem(key, r.in_process_heartbeat_timeout_s, why, f"use less than {barrier:g}")
    if r.in_job and r.step_section_timeout_s <= hard:
        why = f"it must exceed recovery.in_process_hard_timeout_s={hard:g}, or layer 2 acts before layer 1"
        yield Problem("recovery.step_section_timeout_s", r.step_section_timeout_s, why, f"use more than {hard:g}")


def _layers(c: RunConfig) -> Iterator[Problem]:
    r = c.recovery
    if not r.in_job and r.spares:
        why = "hot spares need ft_launcher, and recovery.in_job is off"
        yield Problem("recovery.spares", r.spares, why, "use 0, or recovery.in_job: true")
    if r.in_process and not r.in_job:
        why = "its ranks need the store of ft_launcher, which outlives them, and recovery.in_job is off"
        yield Problem("recovery.in_process", True, why, "use recovery.in_job: true")


def _presets(c: RunConfig) -> Iterator[Problem]:
    rate = c.reliability.failure_rate
    if rate not in FAILURE_RATES:
        fix = f"use one of: {', '.join(FAILURE_RATES)}"
        yield Problem("reliability.failure_rate", rate, "there is no such preset", fix)


def _resume(c: RunConfig) -> Iterator[Problem]:
    step = c.resume.step
    if step is not None and step > c.training.steps:
        yield Problem("resume.step", step, f"the run ends at training.steps={c.training.steps}", "use a step inside it")
    if c.checkpoint.mode == "off" and (c.resume.must_resume or step is not None):
        why = f"resume.step={step}, resume.must_resume={c.resume.must_resume} ask for a checkpoint"
        yield Problem("checkpoint.mode", "off", why, "use async or sync, or do not ask to resume")
    for index, key in enumerate(c.resume.allow_changes):
        if field_at(key.split(".")) is None:
            yield Problem(
                f"resume.allow_changes.{index}", key, "there is no such key", "name a key or a section of the config"
            )


def _faults(c: RunConfig) -> Iterator[Problem]:
    seen = set()
    for index, fault in enumerate(c.faults):
        key = f"faults.{index}"
        if fault.rank >= c.world_size:
            why = f"{_ranks(c)} gives ranks 0 to {c.world_size - 1}"
            yield Problem(f"{key}.rank", fault.rank, why, "name one of them")
        if fault.step > c.training.steps:
            why = f"the run ends at training.steps={c.training.steps}"
            yield Problem(f"{key}.step", fault.step, why, "choose an earlier step")
        if fault.id in seen:
            yield Problem(key, fault.id, "the same fault is listed twice, and each fires once", "remove one")
        seen.add(fault.id)
