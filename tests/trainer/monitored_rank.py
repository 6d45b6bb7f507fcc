"""One rank with a connection to its rank monitor: `python -m tests.trainer.monitored_rank`.

Says `connected CHILD`, the pid of a process that it has forked, and waits for a line. Then it enters a section and says
what comes of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from holdfast.config import names
from trainer.restart import heartbeat
from trainer.restart.heartbeat import MonitorLost


def main() -> None:
    """Connect, fork, wait, enter."""
    try:
        pulse = heartbeat.connect()
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(120)
            os._exit(0)
        print("connected", child, flush=True)
        sys.stdin.readline()
        pulse.enter(names.SECTION_STEP)
        print("entered", flush=True)
    except MonitorLost as error:
        print("lost:", error, flush=True)


if __name__ == "__main__":
    main()
