"""The campaign `kills`: do the seeds that are missing, one line for each, and keep the sum."""

from __future__ import annotations

import argparse
from typing import Any

from bench.chaos.campaign import Campaign
from bench.chaos.records import KEPT, Kill, WorkFile, code_sha256, folded, good, keep
from bench.chaos.tormented import GivenUp


def run(options: argparse.Namespace, about: dict[str, Any]) -> bool:
    """Whether everything that is promised held for every seed so far. about: what is kept beside the sum."""
    work = WorkFile(options.out / "kills.jsonl", code_sha256())
    missing = work.missing(range(options.seeds))
    print(f"chaos: {options.seeds - len(missing)} of {options.seeds} kills are done; work file {work.path}", flush=True)
    given_up = False
    if missing:
        try:
            with Campaign(options.out, work, show) as campaign:
                campaign.go(missing, options.until)
        except GivenUp as error:
            given_up = True
            print(f"chaos: given up: {error}")
    total = folded(work)
    print(", ".join(f"{key} {total[key]}" for key in ("kills", "resumed", "lost_commits", "wrong_weights", "hangs")))
    result = options.result or KEPT
    written = keep(total, about, result)
    print(f"{'kept in' if written else 'not kept, there are not fewer kills in'} {result}")
    return good(total) and not given_up


def show(kill: Kill) -> None:
    """One line per seed."""
    fate = "ok" if kill.ok else f"FAILED {'; '.join(kill.why)}"
    print(
        f"{kill.seed:4d}  {kill.victim:12s}  {kill.aim:10s}  {kill.phase:11s}  step {kill.step:3d}  "
        f"on from {kill.resumed_at}  {kill.seconds:5.1f} s  {fate}",
        flush=True,
    )
