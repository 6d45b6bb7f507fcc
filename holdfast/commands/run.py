"""`holdfast run`: synthesize the manifest of a profile and execute it here. An existing folder is resumed."""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from holdfast.commands.run_folder import PROFILE, clear_run, close_terminal, committed, run_directory, went_back
from holdfast.commands.run_job import Observer, run_job
from holdfast.commands.run_lines import Lines
from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, Problem, RunConfig, load_file, load_profile, names
from holdfast.config.yaml_text import parse
from holdfast.local import RunFolder, RunnerOptions


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "run",
        help="train on this machine: synthesize the manifest of a profile and execute it",
        description="Executes on this machine the manifest that goes to EKS. A development tool: production is "
        "Kubernetes. A folder that holds a run is resumed. Exit code: 0 complete, 78 or 93 if the run has ended for "
        "good, 2 bad input, 130 or 143 after a signal, 1 else.",
    )
    parser.add_argument("--profile", required=True, help="name of a profile, or path of a YAML file")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, new or existing")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="YAML file with what to break: `faults: [...]`")
    add_set(parser, "override one key of the profile")
    parser.add_argument("--fresh", action="store_true", help="delete the run that the folder holds and start at step 0")
    parser.add_argument("--yes", action="store_true", help="let --fresh delete committed checkpoints")
    add_runner_options(parser)


def add_runner_options(parser: Any) -> None:
    """Options that `run` and `resume` share."""
    parser.add_argument("--explain", action="store_true", help="also print every difference from the manifest")
    parser.add_argument("--port", type=int, metavar="N", help="port of the store on this machine; default: a free one")


def main(args: argparse.Namespace) -> int:
    """The run's exit code. Raises ConfigError for bad input."""
    if args.yes and not args.fresh:
        fix = "add --fresh to begin again at step 0, or leave --yes out"
        raise ConfigError([Problem("--yes", True, "it answers what only --fresh asks", fix)])
    config = read_config(args.profile, args.overrides, args.faults)
    with RunFolder(args.out) as folder:
        if args.fresh:
            clear_run(folder.path, sure=args.yes)
        _require_same_run(folder.path, config)
        return start(config, folder, port=args.port, explain=args.explain)


def start(
    config: RunConfig, folder: RunFolder, *, port: int | None, explain: bool, observers: Sequence[Observer] = ()
) -> int:
    """Run the job in its folder unless it has ended for good; the exit code. Progress goes to stdout as plain lines."""
    run = run_directory(folder.layout, config)
    terminal = run.terminal()
    if terminal is not None:
        print(f"This run has ended for good with exit code {terminal.code}: {terminal.reason}")
        print(f"When the cause is mended: holdfast resume {folder.path} --clear-terminal")
        print("If the cause is a value of the config, add --set KEY=VALUE.")
        return terminal.code
    complete = run.complete()
    if complete is not None and complete.get("step") == config.training.steps:
        print(f"This run is complete, step {complete['step']} is committed: nothing is started. Use another folder,")
        print(f"or `holdfast run --fresh` to begin again in {folder.path}.")
        return names.EXIT_COMPLETE
    steps = committed(folder.path)
    if steps:
        print(f"resuming from {steps[-1]} ({len(steps)} committed checkpoints)")
    lines = Lines(config.training.steps, explain=explain)
    options = RunnerOptions(port=port)
    code = run_job(config, folder, options=options, observers=[lines, *observers], explain=explain)
    terminal = run.terminal()
    if terminal is not None:
        print(f"ended for good with exit code {terminal.code}: {terminal.reason}")
        return terminal.code
    return code


def resume(out: Path, *, overrides: Sequence[str] = (), clear_terminal: bool, port: int | None, explain: bool) -> int:
    """Run the job of a folder again; the exit code. Raises ConfigError if there is none, or it ended for good."""
    if not os.path.isfile(out / PROFILE):  # unlike Path.is_file, also of a name that is too long
        fix = "name the --out folder of an earlier `holdfast run`"
        raise ConfigError([Problem("DIR", str(out), f"it has no {PROFILE}, so it is no folder of a run", fix)])
    config = load_profile(str(out / PROFILE), overrides)
    with RunFolder(out) as folder:
        _require_same_run(folder.path, config)
        if went_back(folder.layout, load_file(out / PROFILE)):
            config = load_profile(str(out / PROFILE), ["resume.step=null", *overrides])
        close_terminal(run_directory(folder.layout, config), clear=clear_terminal)
        return start(config, folder, port=port, explain=explain)


def read_config(profile: str, overrides: Sequence[str], faults: Path | None) -> RunConfig:
    """The config of a profile with overrides and a faults file. Raises ConfigError."""
    if faults is None:
        return load_profile(profile, overrides)
    drawn = _read_faults(faults, lambda: load_profile(profile, overrides))
    try:
        # As YAML, which has dates, bytes and circles too: they get as far as the check of each key.
        text = yaml.safe_dump(drawn, default_flow_style=True)
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        why = "it is nested too deep, or a number in it is too long"
        raise ConfigError([Problem("--faults", str(faults), why, "correct the file")]) from None
    return load_profile(profile, [*overrides, f"faults={text}"])


def _read_faults(path: Path, config: Callable[[], RunConfig]) -> list[Any]:
    """`faults` of the file. With `seed`, a missing rank or step is drawn, the same for the same seed."""
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Problem("--faults", str(path), str(error.strerror), "name a readable file")]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = f"it is not YAML ({' '.join(str(error).split())})"
        raise ConfigError([Problem("--faults", str(path), why, "correct the file")]) from None
    if not isinstance(raw, dict) or not isinstance(raw.get("faults"), list) or raw.keys() - {"faults", "seed"}:
        fix = "write `faults: [{kind: exception, rank: 1, step: 25}]`, and `seed: 7` to have rank or step drawn"
        raise ConfigError([Problem("--faults", str(path), "it may have `faults` (a list) and `seed` only", fix)])
    faults: list[Any] = raw["faults"]
    if raw.get("seed") is None:
        return faults
    limits = config()
    return [_drawn(fault, random.Random(f"{raw['seed']}-{index}"), limits) for index, fault in enumerate(faults)]


def _drawn(fault: Any, dice: random.Random, config: RunConfig) -> Any:
    rank, step = dice.randrange(config.world_size), dice.randint(min(2, config.training.steps), config.training.steps)
    return {"rank": rank, "step": step, **fault} if isinstance(fault, dict) else fault


def _require_same_run(out: Path, config: RunConfig) -> None:
    """Another name is another run directory: training would start at step 0 beside the run that is there."""
    if not (out / PROFILE).is_file():
        return
    there = load_file(out / PROFILE).name
    if there != config.name:
        fix = "use another folder, or --fresh to delete that run"
        raise ConfigError(
            [Problem("--out", str(out), f"it holds the run {there}, and the profile is {config.name}", fix)]
        )
