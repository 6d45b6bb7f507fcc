"""`python -m bench.ft_cost`: what carrying all of the fault tolerance costs a step in which nothing goes wrong.

Two sides train the same model on the same devices, each in processes of its own, and take turns of some steps. `on` is
the trainer under ft_launcher with all that a run has: rank monitor and sections, NVRx's wrapper with its monitors,
event log, looks at the store, checks of the loss, metrics that are scraped. `off` is the same step in a bare loop. No
save is due: what one costs is bench.checkpoint's. Each turn is appended at once to a raw file; a further call adds
pairs to it. On two GPUs, in one call:

    python -m bench.ft_cost --profile gpu-local --hardware h200x2 --raw RAW.jsonl --deadline 500
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench import json_lines
from bench.article import ALL
from bench.ft_cost_processes import Died, Sides
from bench.ft_cost_results import CODE, pairs_of, result, show
from bench.gathering import add_options, keep, settle, tell
from holdfast.commands.set_option import add_set
from holdfast.config import ConfigError, RunConfig, load_profile

COMMON = (
    "cluster.nodes=1",
    "cluster.ranks_per_node=2",
    "recovery.spares=0",
    *ALL,
    "recovery.standby=false",
    "recovery.max_in_job_restarts=0",
    "training.steps=1000000000",
    "checkpoint.interval_steps=1000000000",
    "training.min_step_s=0",
    "recovery.init_section_timeout_s=600",
    "recovery.step_section_timeout_s=600",
    "recovery.step_timeout_floor_s=600",
)
"""A standby does nothing between restarts, and would start the trainer itself in the place of the bench's rank. A side
waits for its turn in a step; how long a section may last costs nothing."""
SIZES = {
    "cpu": (
        "model.hidden_size=128",
        "model.intermediate_size=256",
        "model.layers=2",
        "data.sequence_length=64",
        "training.micro_batch_size=4",
        "training.global_batch_size=16",
    ),
    "cuda": ("training.micro_batch_size=32", "training.global_batch_size=64"),
}
"""On GPUs steps of about the article's 0.2 to 0.25 s: a cost per step is a larger part of a shorter one. On CPUs a
model that two idle cores train in a tenth of that."""
POLL_S = 0.5
TELL_S = 30.0
"""How often it says how far it is."""
END_S = 15.0
"""Before the deadline: to end all processes and write the result."""


def main() -> int:
    """Gather the pairs that are missing; 0 if there are enough, 1 if not, 2 for bad input."""
    arguments = parse(sys.argv[1:])
    console = Console(width=150)
    end = time.monotonic() + arguments.deadline - END_S
    try:
        config = config_of(arguments.profile, arguments.overrides)
    except ConfigError as error:
        console.print(str(error), soft_wrap=True, style="red", markup=False)
        return 2
    files = [*arguments.more, arguments.raw]
    lacking = arguments.pairs - len(pairs_of(json_lines.read(files)))
    if lacking > 0:
        try:
            gather(config, lacking, arguments, end, console)
        except Died as error:
            console.print(str(error), soft_wrap=True, style="red", markup=False)
    pairs = pairs_of(json_lines.read(files))
    if not pairs:
        console.print(f"no pair of turns was measured; raw: {arguments.raw}", soft_wrap=True)
        return 1
    made = result(pairs, config, arguments)
    keep(made, arguments.out)
    show(made, console)
    tell(arguments, console)
    return 0 if len(pairs) >= arguments.pairs else 1


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ft_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="cpu-demo", help="cpu-demo, or gpu-local")
    add_set(parser, "override a key, on both sides")
    parser.add_argument("--pairs", type=int, default=40, help="turns of each side")
    parser.add_argument("--steps", type=int, default=15, help="steps of a turn that count")
    parser.add_argument("--settle", type=int, default=3, help="steps of a turn before them")
    add_options(parser, "ft_cost.json", Path("ft-cost") / "turns.jsonl")
    arguments = parser.parse_args(words)
    if min(arguments.pairs, arguments.steps, arguments.settle) < 1:
        parser.error("--pairs, --steps and --settle: at least 1")
    settle(arguments, "ft_cost.json", CODE)
    return arguments


def config_of(profile: str, sets: list[str]) -> RunConfig:
    """The config of the side that is on. Raises ConfigError."""
    device = load_profile(profile, [*COMMON, *sets]).device
    return load_profile(profile, [*COMMON, *SIZES[device], *sets])


def gather(config: RunConfig, lacking: int, arguments: argparse.Namespace, end: float, console: Console) -> None:
    """Let both sides take turns until `lacking` more pairs are there, or it is `end` (monotonic). Raises Died."""
    run = f"{time.time():.0f}-{os.getpid()}"
    note = {"kind": "run", "run": run, "commit": arguments.commit, "steps": arguments.steps, "world": config.world_size}
    json_lines.append(arguments.raw, note)
    with (
        tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder,  # short: sockets lie in it
        Sides(config, Path(folder), run, arguments) as sides,
    ):
        told = time.monotonic()
        while time.monotonic() < end:
            there = [line for line in json_lines.read([arguments.raw]) if line.get("run") == run]
            found = len(pairs_of(there))
            if found >= lacking:
                return
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                console.print(f"{found} of {lacking} pairs")
            sides.look_after(there)
            time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
