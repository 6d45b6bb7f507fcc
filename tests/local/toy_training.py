"""A stand-in for training that leaves in a run directory what `holdfast run` looks at: events, records, checkpoints.

Run by the pods of toy JobSets: `python toy_training.py control|worker RUN_DIR STEPS`. Rank is GROUP_RANK. A file per
rank remembers the last step, so that a new process goes on where the last one was. Imports nothing that takes long.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from holdfast.goodput.events import EventLog

STEP_S = 0.03


def control(run: Path) -> int:
    """End as a supervisor does: by the records."""
    while not (run / "COMPLETE").exists():
        if (run / "TERMINAL.json").exists():
            return int(json.loads((run / "TERMINAL.json").read_text())["code"])
        time.sleep(0.02)
    return 0


def worker(run: Path, steps: int, rank: int) -> int:
    """Count steps; rank 0 commits every 10 and says when it is done. The file `poison` makes it end for good."""
    memory = run / f"step-of-rank-{rank}"
    identity = {"rank": rank, "world_size": 2, "generation": 1, "cycle": 0}
    log = EventLog(run / "events", "rank", **identity, pod=os.environ["POD"], node=os.environ["NODE"])
    log.point("attempt_start", restart=0)
    for step in range(int(memory.read_text() if memory.exists() else 0) + 1, steps + 1):
        if (run / "poison").exists():
            write(run / "TERMINAL.json", {"code": 93, "reason": "the poison was there", "rank": rank, "step": step})
            return 93
        with log.span("step", step=step):
            time.sleep(STEP_S)
        memory.write_text(str(step))
        if rank == 0 and step % 10 == 0:
            write(run / f"checkpoints/step-{step:08d}/COMMITTED.json", {"step": step})
            log.point("commit", step=step)
    if rank == 0:
        write(run / "COMPLETE", {"step": steps})
    while not (run / "COMPLETE").exists():
        time.sleep(0.02)
    return 0


def write(path: Path, record: dict[str, object]) -> None:
    """Put a record in place as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.rename(path)


if __name__ == "__main__":
    run_dir = Path(sys.argv[2])
    if sys.argv[1] == "control":
        sys.exit(control(run_dir))
    sys.exit(worker(run_dir, int(sys.argv[3]), int(os.environ["GROUP_RANK"])))
