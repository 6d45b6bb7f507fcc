"""A program, not a test: two ranks train on a CPU under faults that need no new process, `python -m
tests.trainer.fault_ranks SPEC OUT`. A rank whose attempt has failed begins the next one, as layer 1 has it do.

SPEC: JSON {run: [overrides of cpu-test]}. One run after the other; all are forks of this process, which imports once.
Prints JSON {run: {attempts, error, weights}}: how many attempts it took, what ended it before its last step, and a
checksum of each tensor of the newest committed step.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.config import load_profile, names
from holdfast.run_directory import RunDirectory

RANKS = 2
LIMIT_S = 240.0
MOST_ATTEMPTS = 16


def main(spec: dict[str, list[str]], out: Path) -> dict[str, Any]:
    """All runs."""
    from trainer.imports import import_training_stack

    import_training_stack("llama")
    import trainer.checkpoint
    import trainer.checkpoint.checkpoints
    import trainer.train  # noqa: F401

    return {name: _run(out / name, sets) for name, sets in spec.items()}


def _run(folder: Path, sets: list[str]) -> dict[str, Any]:
    run = RunDirectory(folder / "run")
    owner = run.take(nodes=RANKS, job="test", jobset_attempt=0, pod="pod", lease_s=3600)
    port = _free_port()
    ranks = [_fork(partial(_rank, rank, port, owner.generation, sets, folder)) for rank in range(RANKS)]
    deadline = time.monotonic() + LIMIT_S
    codes: dict[int, int] = {}
    while len(codes) < RANKS and time.monotonic() < deadline and not any(codes.values()):
        for pid in ranks:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.02)
    for pid in set(ranks) - set(codes):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    results = [_result(folder / f"rank-{rank}.json") for rank in range(RANKS)]
    errors = [result["error"] for result in results if result["error"]]
    return {**results[0], "error": "; ".join(errors)} | {"weights": _weights(run)}


def _fork(body: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:  # noqa: BLE001  a fork must never come back into the parent's code
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _rank(rank: int, port: int, generation: int, sets: list[str], folder: Path) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"
    )
    os.environ[names.ENV_STORE] = f"127.0.0.1:{port}"
    import torch
    import torch.distributed as dist

    from holdfast.goodput.events import EventLog
    from trainer import runtime
    from trainer.checkpoint.stage import Stage
    from trainer.checkpoint.writer import Writer
    from trainer.model_folder import settled
    from trainer.restart.heartbeat import Pulse
    from trainer.train import Survivors

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    runtime.STORE_TIMEOUT = timedelta(seconds=1)  # else a name that does not resolve takes two minutes
    # A new interpreter imports torch for seconds, and nearly each attempt begins with another writer.
    Writer._require_process.__defaults__ = ("fork",)
    writer = Writer(rank)
    writer.start(fork=True)
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
    run = RunDirectory(folder / "run")
    identity = runtime.Identity(rank, RANKS, 0, generation, 0, "pod", "node", os.environ[names.ENV_STORE])
    log = EventLog(run.events, "rank", rank=rank, world_size=RANKS, generation=generation, cycle=0)
    config = settled(load_profile("cpu-test", sets), folder, run)
    survivors = Survivors(config, identity, run, folder, log, Pulse(None), writer, Stage(), None)
    attempts, error = _attempts(survivors, generation, store)
    writer.close()
    (folder / f"rank-{rank}.json").write_text(json.dumps({"attempts": attempts, "error": error}))
    store.add("ended", 1)
    while rank == 0 and int(store.add("ended", 0)) < RANKS:  # its process keeps the store
        time.sleep(0.02)


def _attempts(survivors: Any, generation: int, store: Any) -> tuple[int, str]:
    import torch.distributed as dist

    from trainer.restart.in_process import HangWatch
    from trainer.restart.release import release
    from trainer.runtime import Attempt
    from trainer.train import train

    for number in range(MOST_ATTEMPTS):
        store.add(f"at/{number}", 1)
        while int(store.add(f"at/{number}", 0)) < RANKS:
            time.sleep(0.01)
        survivors.log.point("attempt_start", restart=number)
        try:
            train(Attempt(generation, 0, number), survivors, HangWatch())
        except Exception as error:  # noqa: BLE001  whatever it is, another attempt is the answer
            survivors.log.point("attempt_end", restart=number, outcome="exception", error=repr(error)[:300])
            ended = repr(error)
            release(error, gloo=True)
            if dist.is_initialized():  # what NVRx's wrapper does before it calls the function again
                dist.destroy_process_group()
            if survivors.run.terminal() is not None:
                return number + 1, ended
        else:
            return number + 1, ""
    return MOST_ATTEMPTS, ended


def _result(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"attempts": 0, "error": f"{path.stem} did not end in time, or by itself"}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _weights(run: RunDirectory) -> dict[str, str]:
    from holdfast.checkpoint_folder import look
    from trainer.checkpoint.compare import read_whole

    committed = look(run.checkpoints).committed
    if not committed:
        return {}
    tensors = read_whole(run.checkpoints / names.step_folder(max(committed)))
    sums = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    return {**sums, "step": str(max(committed))}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    results = main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(json.dumps(results))
