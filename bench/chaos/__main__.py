"""`python -m bench.chaos --seeds 200`: two campaigns, each of which goes on where an earlier invocation stopped.

kills: checkpoint runs of one process group, killed at random instants. stack: whole jobs from the synthesized manifest,
under random schedules of faults. Exit code 0 if everything that is promised held for every seed so far, else 1.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.chaos import kills
from bench.chaos.stack import command as stack
from bench.demo import ROOT
from bench.record import commit, hardware

PACKAGES = ("torch", "nvidia-resiliency-ext")
CAMPAIGNS: dict[str, Callable[[argparse.Namespace, dict[str, Any]], bool]] = {"kills": kills.run, "stack": stack.run}


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--campaign", choices=[*CAMPAIGNS, "all"], default="all", help="which one; default: both")
    parser.add_argument("--seeds", type=int, default=200, help="seeds in all, those of earlier invocations included")
    parser.add_argument("--seed", type=int, help="repeat this one seed of the campaign `stack`; nothing is recorded")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "chaos", help="work folder")
    parser.add_argument("--result", type=Path, help="where the sum is kept; of one campaign only")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no further seed after this time")
    parser.add_argument("--jobs", type=int, help="jobs at once in the campaign `stack`; default: one per core")
    options = parser.parse_args()
    if options.seed is not None and options.campaign != "stack":
        parser.error("--seed repeats a seed of --campaign stack")
    if options.result is not None and options.campaign == "all":
        parser.error("--result is of one campaign: name it by --campaign")
    if min(options.seeds, options.jobs or 1) < 1:
        parser.error("--seeds, --jobs: at least 1")
    if options.seed is not None:
        return stack.again(options)
    options.until = time.monotonic() + options.limit_s
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }
    wanted = list(CAMPAIGNS) if options.campaign == "all" else [options.campaign]
    held = [CAMPAIGNS[name](options, about) for name in wanted]  # each is run, whatever came of the one before
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
