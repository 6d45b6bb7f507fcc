"""What a template of the tests forks into, in place of `trainer`: says what it finds, or ends in the way it is told."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
from pathlib import Path


def found() -> dict[str, object]:
    """All that a program can find of how it was started."""
    return {
        "argv": sys.argv[1:],
        "name": __name__,
        "main": sys.modules["__main__"].__spec__.name if sys.modules["__main__"].__spec__ else None,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "command": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)],
        "cpus": sorted(os.sched_getaffinity(0)),
        "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
        "stdin": sys.stdin.read(),
        "open": sorted(entry for entry in os.listdir("/proc/self/fd") if int(entry) > 2),
    }


def main() -> None:
    """Do what the words say."""
    what, *words = sys.argv[1:]
    if what == "show":
        print(json.dumps(found()), flush=True)
    elif what == "random":
        import numpy as np

        print(random.random(), np.random.random(), flush=True)
    elif what == "exit":
        sys.exit(int(words[0]))
    elif what == "raise":
        raise RuntimeError("as it was told")
    elif what == "signal":
        os.kill(os.getpid(), int(words[0]))
    elif what == "handles":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(int(words[1])))
        Path(words[0]).write_text(str(os.getpid()))
        signal.pause()
    elif what == "stuck":
        Path(words[0]).write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(300)  # holds the GIL: no thread and no handler of this interpreter ever runs again


if __name__ == "__main__":
    main()
