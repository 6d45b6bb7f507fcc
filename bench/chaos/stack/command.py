"""The campaign `stack`: do the seeds that are missing, one line for each, and keep the sum."""

from __future__ import annotations

import argparse
from typing import Any

from bench.chaos.stack.campaign import StackCampaign, repeat, work_path
from bench.chaos.stack.records import KEPT, Line, WorkFile, begun_elsewhere, code_sha256, folded, good, keep
from bench.chaos.stack.weights import BrokenPeace

_SHOWN = ("schedules", "complete", "wrong_weights", "restarts", "failed")


def run(options: argparse.Namespace, about: dict[str, Any]) -> bool:
    """Whether everything that is promised held for every seed so far. about: what is kept beside the sum."""
    out, code, result = options.out / "stack", code_sha256(), options.result or KEPT
    begun_elsewhere(work_path(out), code, result)
    work = WorkFile(work_path(out), code)
    missing = work.missing(range(options.seeds))
    done = options.seeds - len(missing)
    print(f"chaos: {done} of {options.seeds} schedules are done; work file {work.path}", flush=True)
    broken = False
    if missing:
        try:
            with StackCampaign(out, code, show, work.add) as campaign:
                campaign.go(missing, options.until, options.jobs)
        except BrokenPeace as error:
            broken = True
            print(f"chaos: a job in peace did not become complete: {error}")
    total = folded(work)
    print(", ".join(f"{key} {total[key]}" for key in _SHOWN))
    for seed in total["failed"]:
        print(f"  seed {seed} again: {repeat(seed)}")
    if code_sha256() != code:
        print("not kept: the code has changed meanwhile, so that nobody knows what was put to the test")
        return False
    written = keep(work, about, result)
    print(f"{'kept in' if written else 'not kept, there are not fewer schedules in'} {result}")
    return good(total) and not broken


def again(options: argparse.Namespace) -> int:
    """Repeat one seed, for whoever looks for its cause; its folder stays if it fails. 0 if every promise was kept."""
    lines: list[Line] = []
    with StackCampaign(options.out / "again", code_sha256(), show, lines.append) as campaign:
        campaign.go([options.seed], jobs=1)
    return 0 if lines and lines[0].ok else 1


def show(line: Line, witnesses: list[str]) -> None:
    """One line per seed; more if something was wrong."""
    drawn = " ".join(line.drawn)
    fate = "ok" if line.ok else f"FAILED {'; '.join(line.why)}"
    print(f"{line.seed:4d}  {line.topology:44s}  {line.seconds:5.1f} s  {line.end:11s}  {drawn}  {fate}", flush=True)
    for witness in witnesses:
        print(f"      | {witness}", flush=True)
    if not line.ok:
        print(f"      again: {repeat(line.seed)}", flush=True)
