"""`python -m bench.chaos --seeds 200`: goes on where an earlier invocation stopped, and folds the result.

Exit code 0 if everything that is promised held for every seed so far, else 1.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from bench.chaos.campaign import Campaign
from bench.chaos.records import KEPT, Kill, WorkFile, code_sha256, folded, good, keep
from bench.chaos.tormented import GivenUp
from bench.demo import ROOT
from bench.record import commit, hardware

PACKAGES = ("torch", "nvidia-resiliency-ext")


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="kills in all, those of earlier invocations included")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "chaos", help="work folder")
    parser.add_argument("--result", type=Path, default=KEPT, help="where the sum is kept")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no further kill after this time")
    options = parser.parse_args()
    work = WorkFile(options.out / "kills.jsonl", code_sha256())
    missing = work.missing(range(options.seeds))
    print(f"chaos: {options.seeds - len(missing)} of {options.seeds} kills are done; work file {work.path}", flush=True)
    given_up = False
    if missing:
        deadline = time.monotonic() + options.limit_s
        try:
            with Campaign(options.out, work, show) as campaign:
                campaign.go(missing, deadline)
        except GivenUp as error:
            given_up = True
            print(f"chaos: given up: {error}")
    total = folded(work)
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }
    print(", ".join(f"{key} {total[key]}" for key in ("kills", "resumed", "lost_commits", "wrong_weights", "hangs")))
    written = keep(total, about, options.result)
    print(f"{'kept in' if written else 'not kept, there are not fewer kills in'} {options.result}")
    return 0 if good(total) and not given_up else 1


def show(kill: Kill) -> None:
    """One line per seed."""
    fate = "ok" if kill.ok else f"FAILED {'; '.join(kill.why)}"
    print(
        f"{kill.seed:4d}  {kill.victim:12s}  {kill.aim:10s}  {kill.phase:11s}  step {kill.step:3d}  "
        f"on from {kill.resumed_at}  {kill.seconds:5.1f} s  {fate}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
