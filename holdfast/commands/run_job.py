"""One job on this machine: synthesize its manifest in a subprocess, execute it, and break what is to be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.commands.run_faults import RunnerFaults
from holdfast.commands.run_folder import prepare, run_directory
from holdfast.commands.run_follow import EventTail, TrainingEvent
from holdfast.config import ConfigError, Problem, RunConfig
from holdfast.local import RunFolder, Runner, RunnerOptions, differences, load_manifest
from holdfast.local.report import Happening, RunEnded
from holdfast.local.shim import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
SYNTH_LIMIT_S = 180.0
Observer = Callable[[Happening | TrainingEvent], None]
"""Gets what the local runner tells and what the job's processes log. Called in the runner's loop; must not block."""


def run_job(
    config: RunConfig,
    folder: RunFolder,
    *,
    options: RunnerOptions,
    observers: Sequence[Observer] = (),
    explain: bool = False,
) -> int:
    """Run the job that `config` describes; the runner's exit code. Raises ConfigError."""
    run = run_directory(folder.layout, config)
    profile = prepare(folder.path, run, config)
    manifest = load_manifest(synthesize(profile, folder.path / "manifest"))
    if explain:
        print("differences from a cluster:", *differences(manifest, options), sep="\n  ", flush=True)
    runner = Runner(manifest, folder, events=run.events, options=options)
    tail = EventTail(run.events)
    faults = RunnerFaults(config.faults, run, runner)

    def follow(at_once: bool = False) -> None:
        for event in tail.poll(at_once):
            faults.saw(event)
            for observer in observers:
                observer(event)
        faults.act()

    def tell_the_rest(happening: Happening) -> None:
        if isinstance(happening, RunEnded):
            follow(at_once=True)

    runner.add_hook(follow)
    for observer in (tell_the_rest, *observers):
        runner.observe(observer)
    return runner.run().code


def synthesize(profile: Path, dist: Path) -> list[Path]:
    """Write the manifests of a profile below dist; their paths. Raises ConfigError with the synthesis' complaint."""
    shutil.rmtree(dist, ignore_errors=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("HOLDFAST_SET", "CDK8S_OUTDIR")}
    environment |= {"HOLDFAST_PROFILE": str(profile), "HOLDFAST_DIST": str(dist)}
    command = [sys.executable, str(ROOT / "k8s" / "main.py")]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SYNTH_LIMIT_S, preexec_fn=die_with_parent
        )
    except subprocess.TimeoutExpired:
        why = f"k8s/main.py did not end within {SYNTH_LIMIT_S:.0f} s"
        raise ConfigError([Problem("synthesis", str(profile), why, "run it by hand to see why")]) from None
    paths = sorted(dist.glob("**/job/*.yaml"))
    if done.returncode or not paths:
        raise ConfigError(
            [Problem("synthesis", str(profile), done.stderr.strip(), "correct the profile")], "k8s/main.py"
        )
    return paths
