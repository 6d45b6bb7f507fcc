"""`holdfast check`: judges configs and shows what follows from them. Starts nothing, needs no network and no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from holdfast import launch
from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, Problem, RunConfig, gpu_memory, load_profile, prices, profile_names, sizing
from holdfast.config.checks import lattice
from holdfast.config.notices import notices
from holdfast.config.problems import EXIT_BAD_CONFIG


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "check",
        help="judge a config before it costs anything",
        description="Prints what follows from a config, or every problem with it (exit code 2).",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--profile", metavar="NAME|FILE", help=f"one of {', '.join(profile_names())}; or a YAML file")
    what.add_argument("--all", action="store_true", help="all profiles that come with Holdfast, one line each")
    what.add_argument("--schema", action="store_true", help="print the JSON schema of a profile, for editors")
    add_set(parser, "change one value, e.g. checkpoint.interval_steps=50")
    parser.add_argument(
        "--launch", action="store_true", help="also print the commands and the environment of the pods, with reasons"
    )


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    _refuse_without_effect(args)
    if args.schema:
        print(schema_text(), end="")
        return 0
    if args.all:
        return _check_all(args.overrides)
    config = load_profile(args.profile, args.overrides)
    for name, value in summary(config):
        print(f"{name:<12} {value}")
    for notice in notices(config):
        print(f"{'note':<12} {notice}")
    if args.launch:
        print("\n".join(["", *_launch_lines(config)]))
    return 0


def _refuse_without_effect(args: argparse.Namespace) -> None:
    problems = []
    if args.schema and args.overrides:
        why = "--schema is of all profiles, and says what every key may be"
        problems.append(Problem("--set", ", ".join(args.overrides), why, "leave --set out, or name a --profile"))
    if args.launch and not args.profile:
        other = "--schema" if args.schema else "--all"
        why = f"commands are those of one profile, and {other} prints none"
        problems.append(Problem("--launch", True, why, f"name one --profile instead of {other}"))
    if problems:
        raise ConfigError(problems, "check")


def schema_text() -> str:
    """JSON schema of RunConfig, as kept in holdfast/config/run-config.schema.json."""
    return json.dumps(RunConfig.model_json_schema(), indent=2) + "\n"


def _check_all(overrides: list[str]) -> int:
    code = 0
    for name in profile_names():
        try:
            config = load_profile(name, overrides)
        except ConfigError as error:
            print(error, file=sys.stderr)
            code = EXIT_BAD_CONFIG
        else:
            facts = dict(summary(config))
            print(f"{name:<16} ok  {facts['nodes']}; {facts['model']}")
    return code


def summary(config: RunConfig) -> list[tuple[str, str]]:
    """What follows from a config, as (name, text) pairs."""
    c, r = config.cluster, config.recovery
    saves = config.checkpoint
    rows = [
        ("name", config.name),
        ("nodes", _nodes(config)),
        ("world size", f"{config.world_size} ranks on {config.device}"),
        ("model", f"{config.model.family}, {sizing.parameters(config.model):,} parameters, {config.model.dtype}"),
        ("batch", _batch(config)),
        ("checkpoint", f"{_size(sizing.checkpoint_bytes(config))}, {saves.mode}, every {saves.interval_steps} steps"),
        ("storage", _storage(config)),
        ("staging", f"{_size(sizing.staging_bytes_per_node(config))} of host memory on each node"),
        ("recovery", _recovery(config)),
        ("sizes", _sizes(config)),
        (
            "launcher",
            f"--nnodes={c.nodes}:{config.max_nodes}, up to {r.max_in_job_restarts} restarts"
            if r.in_job
            else "torchrun",
        ),
        ("timeouts", " < ".join(f"{_short(key)} {value:g} s" for key, value in _lattice(config))),
        ("limits", ", ".join(f"{name} {value:g} s" for name, value in _limits(config))),
    ]
    if config.device == "cuda":
        rows.insert(5, ("GPU memory", _gpu_memory(config)))
    if sizing.has_local_tier(config):
        rows.insert(8, ("local tier", _local_tier(config)))
    if config.instance.ec2:
        rows += [("cost", line) for line in prices.lines(config)]
    if config.faults:
        rows.append(("faults", ", ".join(fault.id for fault in config.faults)))
    return rows


def _nodes(config: RunConfig) -> str:
    c, spares = config.cluster, config.recovery.spares
    more = f" + {spares} spare{'s' if spares > 1 else ''}" if spares else ""
    ranks = f"{c.ranks_per_node} rank{'s' if c.ranks_per_node > 1 else ''}"
    return f"{c.nodes}{more} x {c.instance_type}, {ranks} each"


def _sizes(config: RunConfig) -> str:
    c, r = config.cluster, config.recovery
    if not config.elastic:
        return f"{c.nodes} nodes, never fewer (recovery.min_nodes is off)"
    passes = [f"{size} ({config.accumulation_at(size * c.ranks_per_node)} passes)" for size in config.sizes]
    return f"{', '.join(passes)} nodes; fewer after {r.shrink_after_s:g} s, more after {r.grow_after_s:g} s"


def _batch(config: RunConfig) -> str:
    t = config.training
    tokens = t.global_batch_size * config.data.sequence_length
    how = f"{config.world_size} ranks x {t.micro_batch_size} x {config.accumulation} passes"
    return f"{t.global_batch_size} samples = {how}; {tokens:,} tokens per step, {t.steps} steps"


def _storage(config: RunConfig) -> str:
    kept = sizing.kept_checkpoints(config)
    text = f"at most {kept} checkpoints, {_size(kept * sizing.checkpoint_bytes(config))}"
    if not config.instance.ec2:
        return text
    speed = sizing.storage_bytes_per_s(config.storage)
    seconds = sizing.checkpoint_bytes(config) / speed
    return (
        f"{text} of {config.storage.capacity_gib} GiB; one takes {seconds:.0f} s at {speed / 1e6:.0f} MB/s (computed)"
    )


def _gpu_memory(config: RunConfig) -> str:
    found = gpu_memory.peak(config)
    if found is None:
        return f"not predicted: there is no formula for model.family={config.model.family}"
    known = config.instance.gpu_memory_gib
    of = f"of {known:g} GiB" if known else "of a GPU that each rank looks at before it begins"
    return f"{found}; and {gpu_memory.reserve_bytes(found) / sizing.GIB:.1f} for what is not modelled, {of} (computed)"


def _local_tier(config: RunConfig) -> str:
    local = config.checkpoint.local
    where = "memory" if sizing.local_tier_in_memory(config) else "disk"
    parts = "own parts and a neighbour's" if local.replicate and config.cluster.nodes > 1 else "own parts only"
    return (
        f"every {local.interval_steps} steps to {local.path} ({where}); at most {sizing.local_saves(config)} saves, "
        f"{parts}, {_size(sizing.local_tier_bytes_per_node(config))} on each node"
    )


def _recovery(config: RunConfig) -> str:
    r = config.recovery
    layers = [
        ("in_process", r.in_process),
        ("in_job", r.in_job),
        (f"node (up to {r.max_generations} generations)", True),
    ]
    return ", ".join(name for name, on in layers if on)


def _limits(config: RunConfig) -> Iterator[tuple[str, float]]:
    """How long each part of a run may take before something ends it, in the order of a start."""
    r, saves = config.recovery, config.checkpoint
    if r.in_job:
        yield "first section", r.first_section_timeout_s
        yield "init", r.init_section_timeout_s
        yield "restore", r.restore_section_timeout_s
        yield "step", r.step_section_timeout_s
        yield "save", r.checkpoint_section_timeout_s
        yield "between sections", r.out_of_section_timeout_s
    if saves.mode != "off":
        yield "background write", saves.persist_timeout_s
    if r.in_job:
        yield "missing nodes", r.join_timeout_s


def _lattice(config: RunConfig) -> list[tuple[str, float]]:
    """The timeouts whose order matters, in the order in which they act."""
    r = config.recovery
    step = ("recovery.step_section_timeout_s", r.step_section_timeout_s)
    if r.in_process:
        return lattice(config)
    return [step, ("recovery.process_group_timeout_s", r.process_group_timeout_s)] if r.in_job else []


def _short(key: str) -> str:
    return key.removeprefix("recovery.").removesuffix("_s").removesuffix("_timeout").replace("_", " ")


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _launch_lines(config: RunConfig) -> list[str]:
    job = f"{config.name}-<hash>"  # the hash covers the manifest, which only k8s/main.py makes
    lines = []
    for role in ("control", "worker"):
        lines += [f"{role} pod", "  " + " ".join(launch.pod_command(config, role))]
        for variable in launch.pod_environment(config, job, role):
            value = variable.value if variable.value is not None else f"<{variable.field_path}>"
            lines.append(f"  {variable.name}={value}  # {variable.reason}")
        lines.append("")
    return lines[:-1]
