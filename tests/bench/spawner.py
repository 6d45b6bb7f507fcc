"""A module that the zygote runs in tests: spawns processes as NVRx does and reports what they are."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any


def report(queue: Queue[dict[str, Any]], wish: str) -> None:
    """In the spawned process."""
    name = Path("/proc/self/comm").read_text().strip()
    queue.put({"pid": os.getpid(), "parent": os.getppid(), "name": name, "wish": os.environ.get(wish)})
    if wish == "WAIT":
        time.sleep(60)


def main() -> None:
    """Spawn `count` processes one after the other, the environment changed before each; then one that stays."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    context = multiprocessing.get_context("spawn")
    found = []
    for number in range(count):
        os.environ["WISH"] = str(number)
        queue: Queue[dict[str, Any]] = context.Queue()
        process = context.Process(target=report, args=(queue, "WISH"), daemon=True)
        process.start()
        found.append({**queue.get(timeout=20), "started": process.pid})
        process.join(20)
        found[-1]["code"] = process.exitcode
    (folder / "report.json").write_text(json.dumps({"pid": os.getpid(), "found": found}))
    if len(sys.argv) > 3:
        queue = context.Queue()
        context.Process(target=report, args=(queue, "WAIT")).start()
        queue.get(timeout=20)
        (folder / "waits").touch()
        time.sleep(60)


if __name__ == "__main__":
    main()
