"""`python -m trainer.restart.launcher ft_launcher|nvrx-control ARGUMENTS`: NVRx's console script of that name, with the
two fixed pauses of each restart shortened (recovery.short_pauses).

NVRx 0.6.0 has no option for either. After it has ended the ranks, `utils.terminate_mp_processes` (utils.py, line 334)
sleeps 1 s between SIGTERM and SIGKILL of their process groups, which are empty by then as a rule. Then
`_wait_for_rendezvous_open` (ft_rendezvous_barrier.py, line 1104) sleeps 1 s although it has just learned that the round
is over and the next one open. Both are exactly 1 s of every restart in the job (docs/adr/0015). The same limits hold
here, but what is waited for is looked at meanwhile. Any other version of NVRx is left as it is.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION = "0.6.0"
"""The only version whose source was read for this."""
PAUSE_S = 1.0
"""What NVRx sleeps at both places, and what they may take at most."""
LOOK_S = 0.05
"""How often is looked instead. A node that waits costs the control pod's store three short requests per look."""


class Clock:
    """The module `time` for a module of NVRx: its one pause is cut to LOOK_S. Its loop looks again after each."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """As time.sleep, but not the fixed pause."""
        time.sleep(LOOK_S if seconds == PAUSE_S else seconds)


def end_groups(allowed_pgids: Collection[int]) -> None:
    """In place of terminate_mp_processes: SIGTERM to process groups, SIGKILL to what still runs after PAUSE_S. Returns
    as soon as nothing runs."""
    if 1 in allowed_pgids:  # a pod without an init process: the group is everybody's
        return
    _signal(allowed_pgids, signal.SIGTERM)
    deadline = time.monotonic() + PAUSE_S
    while _any_runs(allowed_pgids) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    _signal(allowed_pgids, signal.SIGKILL)


def _signal(groups: Collection[int], number: signal.Signals) -> None:
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            logging.warning("process group %d could not be sent %s: %s", group, number.name, error)


def _any_runs(groups: Collection[int]) -> bool:
    """Whether a process of one of the groups runs. A zombie does not: orphans are the supervisor's to collect."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if int(group) in groups and state not in "ZX":
                return True
    return False


def shorten() -> bool:
    """Shorten the pauses in this process; False if this NVRx is another one than VERSION."""
    from nvidia_resiliency_ext.fault_tolerance import ft_rendezvous_barrier, launcher

    found = metadata.version("nvidia_resiliency_ext")
    if found != VERSION or not hasattr(launcher, "terminate_mp_processes"):
        logging.warning("NVRx %s keeps its pauses: recovery.short_pauses knows %s only", found, VERSION)
        return False
    vars(launcher)["terminate_mp_processes"] = end_groups
    vars(ft_rendezvous_barrier)["time"] = Clock()
    return True


def _entry(name: str) -> Callable[[], Any]:
    """What the console script calls."""
    from nvidia_resiliency_ext.fault_tolerance import control_plane, launcher

    entries: dict[str, Callable[[], Any]] = {"ft_launcher": launcher.main, "nvrx-control": control_plane.main}
    return entries[name]


def main() -> None:
    """Be the console script that the first argument names."""
    sys.argv = sys.argv[1:]
    shorten()
    sys.exit(_entry(sys.argv[0])())


if __name__ == "__main__":
    main()
