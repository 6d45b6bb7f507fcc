"""A rank without training: slow in one section each, then one of them hangs in a step. Started by ft_launcher.

Arguments: seconds of the slow phases, seconds of the hang. Prints a line with the wall time, as NVRx does, per section.
"""

from __future__ import annotations

import os
import sys
import time

from holdfast.config import names
from trainer.restart import heartbeat

HANGS = 1


def main() -> None:
    """Rank 0 is slow in init, rank 1 in restore, rank 2 in checkpoint; in the first cycle rank 1 hangs in its step."""
    slow_s, hang_s = map(float, sys.argv[1:])
    rank, cycle = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def say(what: str) -> None:
        print(f"SECTIONS {time.time():.3f} rank{rank} cycle{cycle} {what}", flush=True)

    def linger(section: str, is_slow: bool) -> None:
        time.sleep(slow_s if is_slow and cycle == 0 else 0.1)
        say(f"{section} done")

    pulse = heartbeat.connect()
    pulse.restart()
    say("init begun")
    linger(names.SECTION_INIT, rank == 0)
    with pulse.section(names.SECTION_RESTORE):
        linger(names.SECTION_RESTORE, rank == 1)
    with pulse.section(names.SECTION_STEP):
        linger(names.SECTION_STEP, False)
    with pulse.section(names.SECTION_CHECKPOINT):
        linger(names.SECTION_CHECKPOINT, rank == 2)
    if cycle == 0 and rank != HANGS:
        pulse.enter(names.SECTION_CHECKPOINT)
        time.sleep(hang_s)  # as the others would: in a section with a longer limit
    with pulse.section(names.SECTION_STEP):
        say("last step begun")
        time.sleep(hang_s if cycle == 0 else 0.1)
        say("last step done")


if __name__ == "__main__":
    main()
