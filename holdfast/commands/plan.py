"""`holdfast plan`: what a profile will reach, what to change, and what each change is worth. Runs nothing."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, Problem, RunConfig, load_file, load_profile, names, profile_names
from holdfast.config.failure_rates import FAILURE_RATES, failure_rate


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "plan",
        help="what a run will reach, what to change, and what each change is worth",
        description="Computes the goodput to expect of a profile under a failure rate, and the intervals, spares, "
        "layers and file system with which the same work costs least. Nothing is run.",
    )
    parser.add_argument(
        "--profile", required=True, metavar="NAME|FILE", help=f"one of {', '.join(profile_names())}; or a YAML file"
    )
    add_set(parser, "change one value, e.g. training.expected_step_s=0.4")
    parser.add_argument(
        "--nodes",
        metavar="N|FIRST..LAST",
        help="training nodes instead of the profile's; a range gives a row per doubling",
    )
    parser.add_argument(
        "--failure-rate",
        metavar="PRESET|VALUE",
        help="instead of reliability.failure_rate: failures of node hardware per 1,000 node-days, or one of "
        f"{', '.join(FAILURE_RATES)}",
    )
    parser.add_argument("--from", dest="run", type=Path, metavar="RUN", help="take durations from this run's event log")
    parser.add_argument("--explain", action="store_true", help="also print every duration and what it rests on")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the profile with what is recommended")
    parser.add_argument("--force", action="store_true", help="let --write replace a file")


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    from holdfast.goodput.planner import Setting, document, plan_for

    _refuse_without_effect(args)
    config = load_profile(args.profile, args.overrides)
    rate = failure_rate(args.failure_rate or config.reliability.failure_rate)
    sizes = _sizes(args.nodes, config)
    measured = None if args.run is None else _Measured(args.run)
    if args.write:
        _refuse_write(args, sizes)
    plans = []
    for nodes in sizes:
        inputs = _inputs(config, nodes, measured)
        setting = Setting(config=config, nodes=nodes, rate=rate, inputs=inputs)
        plans.append(plan_for(setting, with_changes=len(sizes) == 1))
    if args.write:
        from holdfast.commands.plan_write import write_plan

        write_plan(args.profile, args.overrides, plans[0], args.write, force=args.force)
    if args.json:
        print(json.dumps(document(plans), indent=2))
    else:
        from holdfast.commands.plan_table import print_plans

        print_plans(plans, explain=args.explain)
        if args.write:
            print(f"Profile: {args.write}")
    return 0


def _refuse_without_effect(args: argparse.Namespace) -> None:
    problems = []
    if args.explain and args.json:
        why = "JSON has every duration and what it rests on anyhow, below `inputs`"
        problems.append(Problem("--explain", True, why, "leave --explain out, or --json"))
    if args.force and not args.write:
        why = "without --write nothing is written"
        problems.append(Problem("--force", True, why, "add --write FILE, or leave --force out"))
    if problems:
        raise ConfigError(problems, "plan")


def _sizes(text: str | None, config: RunConfig) -> list[int]:
    from holdfast.goodput.planner import doublings

    if text is None:
        return [config.cluster.nodes]
    found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text.strip())
    if not found:
        fix = "write one number, like 16, or a range, like 2..2048"
        raise ConfigError([Problem("--nodes", text, "it is neither a number nor a range", fix)], "plan")
    first = int(found[1])
    return doublings(first, int(found[2] or first))


class _Measured:
    """A run to calibrate with, read once."""

    def __init__(self, asked: Path) -> None:
        from holdfast.goodput.ledger import account
        from holdfast.goodput.lines import OTHER_VERSION
        from holdfast.goodput.locate import locate_run
        from holdfast.goodput.reader import read_run

        run_dir = locate_run(asked)
        self.name = str(asked)
        self.timeline = read_run(run_dir)
        foreign = next((a for a in self.timeline.anomalies if a.kind in OTHER_VERSION), None)
        if foreign is not None:
            why = f"an event log in it cannot be trusted: {foreign}"
            raise _no_run(self.name, why, "use the version of holdfast that wrote it")
        self.ledger = account(self.timeline)
        if not self.ledger.steps:
            raise _no_run(self.name, "no step was finished in it", "name a run that has trained for a while")
        self.config = load_file(run_dir / names.RUN_YAML)


def _no_run(name: str, why: str, fix: str) -> ConfigError:
    return ConfigError([Problem("--from", name, why, fix)], "plan")


def _inputs(config: RunConfig, nodes: int, measured: _Measured | None) -> Any:
    from holdfast.goodput.planner import calibrated, default_inputs

    inputs = default_inputs(config, nodes)
    if measured is None:
        return inputs
    return calibrated(inputs, measured.timeline, measured.ledger, measured.config, measured.name)


def _refuse_write(args: argparse.Namespace, sizes: list[int]) -> None:
    if len(sizes) > 1:
        fix = "name one number of nodes, or leave --write out"
        raise ConfigError([Problem("--nodes", args.nodes, "a profile has one number of nodes", fix)], "plan")
    if args.write.suffix not in (".yaml", ".yml"):
        fix = "name a file that ends in .yaml"
        raise ConfigError([Problem("--write", str(args.write), "profiles are YAML files", fix)], "plan")
    if args.write.exists() and not args.force:
        raise ConfigError(
            [Problem("--write", str(args.write), "it exists", "name a new file, or add --force to replace it")], "plan"
        )
