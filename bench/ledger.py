"""How long `holdfast report` takes for a large run, and what an event costs a rank: `python -m bench.ledger`.

The run is imagined, its files are real: archives by the writer that compaction uses, and for each rank one last segment
of JSON lines, as a running job has them. They are read and accounted in a process of its own, whose memory is measured.
Nothing here needs a GPU; the numbers are this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.demo import ROOT
from bench.imagined_run import Imagined, write_run
from bench.record import commit, hardware
from holdfast.config.names import EVENTS
from holdfast.goodput.archive import SUFFIX
from holdfast.goodput.compaction import Compaction
from holdfast.goodput.events import SEGMENT_BYTES, EventLog
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run

KEPT = ROOT / "bench" / "results" / "cpu" / "ledger_scale.json"
SCHEMA = 1
LIMIT_S, LIMIT_MIB = 30.0, 2048
"""What a report of 1000 ranks x 10,000 steps may take."""
READ_LIMIT_S = 600
EVENTS_TIMED = 20_000


def main() -> int:
    """Make the run, measure, write the result. Exit code 1 if the full size missed its limits."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run there, and use it if it is there")
    parser.add_argument("--read", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(arguments.read)))
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-ledger-") as folder:
        run_dir = arguments.keep or Path(folder)
        if not (run_dir / EVENTS).is_dir():
            write_run(run_dir, Imagined(arguments.ranks, arguments.steps))
        result = {
            "schema": SCHEMA,
            "commit": commit(("holdfast", "bench/ledger.py", "bench/imagined_run.py")),
            "hardware": hardware(),
            "load_before": round(os.getloadavg()[0], 1),
            "ranks": arguments.ranks,
            "steps": arguments.steps,
            **files(run_dir),
            **in_a_fresh_process(run_dir),
            "limit_s": LIMIT_S,
            "limit_mib": LIMIT_MIB,
            **event_cost(Path(folder) / "cost"),
            **compaction_cost(Path(folder) / "compaction"),
        }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return int(result["seconds"] > LIMIT_S or result["peak_rss_mib"] > LIMIT_MIB)


def files(run_dir: Path) -> dict[str, Any]:
    """What lies on the disk."""
    archives = list((run_dir / EVENTS).glob(f"*{SUFFIX}"))
    segments = list((run_dir / EVENTS).glob("*.jsonl"))
    return {
        "archives": len(archives),
        "archives_mib": round(sum(path.stat().st_size for path in archives) / 2**20, 1),
        "segments": len(segments),
        "segments_mib": round(sum(path.stat().st_size for path in segments) / 2**20, 1),
    }


def in_a_fresh_process(run_dir: Path) -> dict[str, Any]:
    """`read` where no memory has been used before."""
    argv = [sys.executable, "-m", "bench.ledger", "--read", str(run_dir)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=READ_LIMIT_S, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def read(run_dir: Path) -> dict[str, Any]:
    """Seconds of both halves, processor time (less where others use the machine), peak memory, what the ledger says."""
    start = time.perf_counter()
    timeline = read_run(run_dir)
    read_at = time.perf_counter()
    ledger = account(timeline)
    summary = ledger.summary()
    end = time.perf_counter()
    return {
        "events": len(timeline.columns),
        "read_s": round(read_at - start, 2),
        "account_s": round(end - read_at, 2),
        "seconds": round(end - start, 2),
        "cpu_s": round(time.process_time(), 2),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "attempts": len(ledger.attempts),
        "anomalies": len(ledger.anomalies),
        "closure_error_s": abs(sum(summary["buckets"].values()) - ledger.wall_s),
        "ledger": {key: summary[key] for key in ("wall_s", "steps", "goodput", "goodput_total", "buckets")},
    }


def event_cost(folder: Path) -> dict[str, Any]:
    """What a rank pays: for an event, and for the one that begins a new segment."""
    log = EventLog(folder, "rank", rank=0, world_size=1)
    seconds = np.array(list(_timed(log)))
    log.close()
    segments = len(list(folder.glob("*.jsonl")))
    slowest = np.sort(seconds)[-(segments - 1) :]
    shutil.rmtree(folder)
    return {
        "event_us": round(float(np.median(seconds)) * 1e6, 1),
        "next_segment_us": round(float(np.median(slowest)) * 1e6, 1),
        "events_per_segment": EVENTS_TIMED // segments,
        "segment_bytes": SEGMENT_BYTES,
    }


def _timed(log: EventLog) -> Iterator[float]:
    for step in range(EVENTS_TIMED):
        start = time.perf_counter()
        log.point("step", step=step, loss=2.345678901234567)
        yield time.perf_counter() - start


def compaction_cost(folder: Path) -> dict[str, Any]:
    """Seconds of compaction per million events: what the process beside the control pod's supervisor uses."""
    ranks = 4
    for rank in range(ranks):
        log = EventLog(folder, "rank", rank=rank, world_size=ranks)
        for _ in _timed(log):
            pass
        log.close()
    start = time.perf_counter()
    archived = Compaction(folder).round()
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return {
        "compaction_s_per_million": round(seconds / (ranks * EVENTS_TIMED) * 1e6, 1),
        "compacted_segments": archived,
    }


if __name__ == "__main__":
    sys.exit(main())
