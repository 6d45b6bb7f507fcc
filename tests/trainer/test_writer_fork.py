"""A writer that is forked from a fresh rank does what a spawned one does, and holds nothing of the rank but memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = """
import os, signal, socket, sys, threading, time
from pathlib import Path
from trainer.checkpoint.writer import Writer

def spawned(pid):
    return "--multiprocessing-fork" in Path(f"/proc/{pid}/cmdline").read_text().split("\\0")

def result(writer, ticket):
    deadline = time.monotonic() + 60
    while (value := writer.result(ticket, 60)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value

here, there = socket.socketpair()
if "threads" in sys.argv:
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
writer = Writer(0)
writer.start(fork=True)
first = writer.pid
print("forked", not spawned(first))
print("result", result(writer, writer.submit(os.getppid)) == os.getpid())
here.close()
there.settimeout(10)
print("other end sees the end", there.recv(1) == b"")
os.kill(first, signal.SIGKILL)
while writer._caller.process.is_alive():
    time.sleep(0.01)
writer.start()
print("replaced by a new interpreter", writer.pid != first, spawned(writer.pid))
print("result", result(writer, writer.submit(os.getppid)) == os.getpid())
writer.close()
"""


PAIR = (
    WORK.partition("here, there")[0]
    + """
from trainer.checkpoint.writer import start_together

pair = [Writer(0), Writer(0)]
start_together(pair, fork=True)
print("writers forked", *(not spawned(writer.pid) for writer in pair))
print("results", *(result(writer, writer.submit(os.getppid)) == os.getpid() for writer in pair))
for writer in pair:
    writer.close()
"""
)


def printed(*words: str, threads: int = 1, work: str = WORK) -> list[str]:
    # As in a pod: numpy's library starts a thread per core otherwise. threads: that torch may start.
    done = subprocess.run(
        ["env", f"OMP_NUM_THREADS={threads}", "OPENBLAS_NUM_THREADS=1", sys.executable, "-c", work, *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_fresh_process_forks_its_writer_and_a_later_one_is_a_new_interpreter() -> None:
    assert printed() == [
        "forked True",
        "result True",
        "other end sees the end True",
        "replaced by a new interpreter True True",
        "result True",
    ]


def test_all_writers_of_a_rank_are_forked_however_many_threads_torch_may_start() -> None:
    """A node with one GPU leaves all its cores to the rank's OpenMP. To make a writer must not start these threads."""
    assert printed(threads=4, work=PAIR) == ["writers forked True True", "results True True"]


def test_a_process_with_threads_starts_a_new_interpreter() -> None:
    assert printed("threads")[:2] == ["forked False", "result True"]
