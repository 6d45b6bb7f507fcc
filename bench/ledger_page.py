"""The sentences on how large a run the ledger takes, made from the kept result of `python -m bench.ledger`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.ledger import KEPT


def headline(folder: Path) -> str:
    """Size, seconds, memory, and what a rank pays. folder: of the document that says so."""
    if not KEPT.exists():
        return "Not measured yet: `python -m bench.ledger` makes the numbers for this place."
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    raw = os.path.relpath(KEPT, folder)
    return (
        f"An imagined run of {kept['ranks']:,} ranks and {kept['steps']:,} steps ({kept['events']:,} events; "
        f"{kept['archives']} archives of {kept['archives_mib']:,.0f} MiB in all, {kept['segments_mib']:,.0f} MiB of "
        f"lines) is read in {kept['read_s']:.1f} s and accounted in {kept['account_s']:.1f} s "
        f"({kept['cpu_s']:.1f} s of processor time; the machine's load was {kept['load_before']} before), with "
        f"{kept['peak_rss_mib']:,} MiB of memory, on {kept['hardware']['cores']} cores; its buckets miss the wall time "
        f"by {kept['closure_error_s']:.0e} s. An event costs the rank that writes it {kept['event_us']:.1f} µs "
        f"(median), one in {kept['events_per_segment']:,}, which begins a new segment, "
        f"{kept['next_segment_us']:,.0f} µs, on a local disk; the process that compacts uses "
        f"{kept['compaction_s_per_million']:.1f} s per million events ([raw numbers]({raw}), commit {kept['commit']}; "
        "`python -m bench.ledger` does it again). What a new segment costs on FSx for Lustre is not verified: run it "
        "there, with TMPDIR on the file system."
    )
