"""A rank of bench.ft_cost: `python -m bench.arms.ft_cost_rank on|off SPEC`.

`on` is the trainer itself (trainer.__main__, under ft_launcher); only its train_step is called through a metronome.
`off` calls the same train_step on the same model in a bare loop: no launcher, wrapper, sections, events, metrics,
looks at the store or checks of the loss. The metronome lets one side run at a time, on the same devices, and writes
down how long each turn took.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from bench import json_lines
from bench.arms.silent import Silent
from bench.ft_cost_spec import OFF, ON, STALL_S, Spec, next_turn
from holdfast.config import load_file, names
from trainer import train as training

LOOK_S = 1.0
"""Longest stay inside the store's library: NVRx's watchdog wants to see bytecode run."""


class Metronome:
    """`enter` at the start of every step: waits for this side's turn, and times it from entry to entry."""

    def __init__(self, spec: Spec, side: str, rank: int) -> None:
        self._spec = spec
        self._side = side
        self._rank = rank
        self._store: Any = None
        self._turn = -1
        self._left = 0
        self._from = self._cpu_from = 0.0
        self._last_step = 0

    def enter(self, step: int) -> None:
        """A step begins. Ends the process if its loop was begun again: that is no run without faults."""
        now, cpu_now = time.perf_counter(), time.process_time()
        if step <= self._last_step:
            self._end(f"step {step} came after step {self._last_step}: the {self._side} side was restarted")
        self._last_step = step
        if self._left == 0:
            self._hand_over(now, cpu_now)
            self._left = self._spec.settle + self._spec.steps
        elif self._left == self._spec.steps:
            self._from, self._cpu_from = now, cpu_now
        self._left -= 1

    def _hand_over(self, now: float, cpu_now: float) -> None:
        _finish_device()
        if self._turn >= 0:
            if self._rank == 0:
                took = {"seconds": now - self._from, "cpu_s": cpu_now - self._cpu_from}
                self._report("turn", turn=self._turn, steps=self._spec.steps, **took)
            self._over()
        last, self._turn = self._turn, next_turn(self._side, self._turn)
        if last + 1 == self._turn:
            self._wait(f"over/{last}")  # all ranks of this side have ended the turn before
        else:
            self._wait(f"over/{self._turn - 1}")

    def _over(self) -> None:
        key = f"over/{self._turn}"
        if self._connected().add(f"ended/{self._turn}", 1) == self._spec.world:
            self._connected().set(key, "1")

    def _wait(self, key: str) -> None:
        if key == "over/-1":
            return
        deadline = time.monotonic() + STALL_S
        while time.monotonic() < deadline:
            try:
                self._connected().wait([key], timedelta(seconds=LOOK_S))
                return
            except RuntimeError:  # not yet; a store that has gone answers so at once
                time.sleep(0.01)
        self._end(f"{key} was not said within {STALL_S:.0f} s")

    def _connected(self) -> Any:
        if self._store is None:
            import torch.distributed as dist

            host, _, port = self._spec.store.rpartition(":")
            limit = timedelta(seconds=STALL_S)
            base = dist.TCPStore(host, int(port), is_master=False, timeout=limit, wait_for_workers=False)
            self._store = dist.PrefixStore("bench-turns", base)
        return self._store

    def _report(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "run": self._spec.run, "side": self._side, "rank": self._rank, **fields}
        json_lines.append(Path(self._spec.raw), line)

    def _end(self, why: str) -> None:
        self._report("failed", why=why)
        os._exit(1)  # at once: NVRx's wrapper would answer an exception with a restart


def _finish_device() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def on(spec: Spec, metronome: Metronome) -> int:
    """The trainer's own main, with everything that it carries."""
    inner: Callable[..., float] = training.train_step

    def timed(step: int, survivors: Any, parts: Any) -> float:
        metronome.enter(step)
        return inner(step, survivors, parts)

    training.train_step = timed
    from trainer.__main__ import main

    sys.argv = ["trainer", "--config", spec.config, "--run-dir", spec.run_dir]
    return main()


def off(spec: Spec, metronome: Metronome) -> int:
    """The same steps, and nothing else."""
    from trainer.imports import import_training_stack

    config = load_file(Path(spec.config))
    import_training_stack(config.model.family)
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from trainer import optimizer as optimizers
    from trainer.data import open_dataset
    from trainer.model import build
    from trainer.runtime import Attempt, Identity, device_of, process_group

    rank, storage, silent = int(os.environ["RANK"]), Path(spec.storage), cast(Any, Silent())
    identity = Identity(rank, spec.world, rank, 0, 0, "", "", "")
    if config.device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.use_deterministic_algorithms(config.device == "cpu")
    device = device_of(config, rank)
    with process_group(config, identity, Attempt(0, 0, 0), silent):
        model = build(config, device, init_device_mesh(device.type, (spec.world,)))
        optimizer = optimizers.build_optimizer(model, config)
        dataset = open_dataset(config, storage, storage / names.TOKEN_CACHE)
        survivors = training.Survivors(config, identity, silent, storage, silent, silent, silent, silent)
        parts = training.Parts(model, optimizer, dataset, silent, silent, silent, device, silent)
        for step in itertools.count(1):
            metronome.enter(step)
            training.train_step(step, survivors, parts)
    return 0


def main() -> int:
    """Run until the driver ends this process."""
    side, spec = sys.argv[1], Spec.from_json(sys.argv[2])
    metronome = Metronome(spec, side, int(os.environ["RANK"]))
    return {ON: on, OFF: off}[side](spec, metronome)


if __name__ == "__main__":
    from trainer.__main__ import leave

    try:
        code = main()
    except BaseException:  # noqa: BLE001  the interpreter would print it too, and then might never end
        import traceback

        traceback.print_exc()
        code = 1
    leave(code)
