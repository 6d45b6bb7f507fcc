"""One rank under NVRx's wrapper that does not do well: `python -m tests.trainer.in_process_rank STORE WHERE`.

WHERE: `starting`, `off` or `started`: there the main thread of the first attempt stands still. `idle`: every attempt
fails before its first step. `slow`: eight attempts fail, each after one step. `atomic`: the first one stands still
where layer 1 must not strike. Prints a line per attempt.
"""

from __future__ import annotations

import sys
import time

from holdfast.config import load_profile
from trainer.__main__ import leave
from trainer.restart import in_process
from trainer.restart.idle import Idle
from trainer.restart.in_process import HangWatch
from trainer.runtime import Attempt, Identity

SOFT_S, STILL_S = 2.0, 6.0
SETS = (
    "cluster.nodes=1",
    "recovery.in_process=true",
    f"recovery.in_process_soft_timeout_s={SOFT_S}",
    "recovery.in_process_hard_timeout_s=15",
    "recovery.process_group_timeout_s=1.5",
)


def main() -> None:
    """Run attempts until one comes to its end."""
    store, where = sys.argv[1:]
    steps: list[int] = []

    def body(attempt: Attempt, watch: HangWatch) -> None:
        print(f"attempt {attempt.restart}", flush=True)
        if where == "slow" and attempt.restart < 8:
            steps.append(attempt.restart)
        if where == "idle" or (where == "slow" and attempt.restart < 8):
            raise RuntimeError("the peer is gone")
        if where == "starting" and attempt.restart == 0:
            time.sleep(STILL_S)
            for _ in range(200):  # Python runs again: there a restart would strike
                time.sleep(0.01)
        watch.started()
        if where == "off" and attempt.restart == 0:
            with watch.off():
                time.sleep(STILL_S)
                for _ in range(200):
                    time.sleep(0.01)
        if where == "atomic" and attempt.restart == 0:
            with watch.atomic():
                time.sleep(STILL_S)
                for _ in range(200):
                    time.sleep(0.01)
                print("whole", flush=True)
        elif where == "started" and attempt.restart == 0:
            time.sleep(STILL_S)
        if where in ("atomic", "started") and attempt.restart == 0:
            while True:  # there it strikes
                time.sleep(0.01)

    idle = Idle(lambda: len(steps))

    def why_not(_restart: int) -> str | None:
        return "it gets nowhere" if idle.too_many() else None

    config = load_profile("cpu-test", [*SETS])
    in_process.run(config, Identity(0, 1, 0, 1, 0, "", "", store), body, why_not)


if __name__ == "__main__":
    try:
        main()
    except BaseException as end:  # noqa: BLE001  NVRx's RestartAbort is one
        print(f"ended: {end}", flush=True)
        leave(1)
