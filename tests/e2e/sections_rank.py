"""A rank without training: slow in one phase each, one is frozen for a while, then one of them hangs in a step. Started
by ft_launcher.

Arguments: seconds of the slow phases, of the freeze, and of the hang, the run directory, overrides of cpu-test. Prints
a line with the wall time, as NVRx does, per section.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast.config import load_profile, names
from holdfast.run_directory import RunDirectory
from trainer.faults import pause
from trainer.restart import heartbeat
from trainer.restart.learned_limits import StepLimit

HANGS = 1
FROZEN = 2
QUICK_STEPS = 5


def main() -> None:
    """In the first cycle rank 0 is slow in init, rank 1 in restore, rank 3 in its first step, rank 2 in a save; then
    rank 2 is frozen in a step, and rank 1 hangs in its last one."""
    slow_s, frozen_s, hang_s = map(float, sys.argv[1:4])
    config, run = load_profile("cpu-test", sys.argv[5:]), RunDirectory(Path(sys.argv[4]))
    rank, cycle = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def say(what: str) -> None:
        print(f"SECTIONS {time.time():.3f} rank{rank} cycle{cycle} {what}", flush=True)

    def linger(section: str, is_slow: bool) -> None:
        time.sleep(slow_s if is_slow and cycle == 0 else 0.1)
        say(f"{section} done")

    pulse = heartbeat.connect()
    pulse.learn(StepLimit(config, run, rank, config.world_size))
    pulse.restart()
    say("init begun")
    linger(names.SECTION_INIT, rank == 0)
    with pulse.section(names.SECTION_RESTORE):
        linger(names.SECTION_RESTORE, rank == 1)
    with pulse.section(names.SECTION_INIT):  # as train() has it for the steps of the warm-up
        linger("first step", rank == 3)
    for _ in range(QUICK_STEPS):
        with pulse.section(names.SECTION_STEP):
            time.sleep(0.05)
    with pulse.section(names.SECTION_STEP):
        say("frozen step begun")
        if cycle == 0 and rank == FROZEN:
            pause(frozen_s)
        say("frozen step done")
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
