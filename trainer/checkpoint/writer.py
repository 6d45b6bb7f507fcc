"""The writer process of a rank: NVRx's persistent worker, supervised. What it does is in persist.py and commit.py.

It dies with the trainer; a dead or late one is replaced and what it was doing counts as failed. NVRx's own wait
(`maybe_finalize_async_calls(blocking=True)`) never returns once the process died and is never called. What a request
returns comes back through a small piece of shared memory: a file could not be written when the disk is full. By the
same way a request that waits for something is called off.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest, PersistentAsyncCaller
from torch import multiprocessing

from trainer.checkpoint.outcomes import OUTCOME_BYTES, OUTCOMES, SWITCH_BYTES, place, report, settle, switch
from trainer.checkpoint.segments import Handle
from trainer.standby.soundness import close_sockets, unfit_to_fork

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
PROCESS_NAME = b"hf-writer"
"""A forked writer has the command line of its rank; by this, `ps -o comm` and `top` tell them apart."""
NICE = 10
"""CPU priority of the writer: training comes first."""
LET_GO_S = 0.3
"""A killed writer is waited for so long. Measured: killed while it wrote to a slow disk, it was there for 3 s more.
What its last system call still does is harmless: nobody reads its folder, and a marker of an aborted attempt is
refused."""

ITS_END_S = 5.0
"""The same where what it has left must be known: a commit under way is a fact only when its process has ended."""


class WriterFailed(Exception):
    """The writer process died, was too slow, or could not do what it was asked to.

    kind: name of the exception's class if one ended the request there, else empty.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class _Caller(PersistentAsyncCaller):  # type: ignore[misc]
    """NVRx's, without its clean-up when it is collected, which waits without limit for a process that may be dead; and
    with a process that dies with this one before it waits for anything."""

    method = "spawn"

    def __del__(self) -> None:
        pass

    def _start_worker(self, rank: int) -> None:
        context: Any = multiprocessing.get_context(self.method)
        self.process = context.Process(
            target=_work,
            args=(os.getpid(), rank, self.queue, self.preload_q, self.comp_q, logger.getEffectiveLevel(), NICE),
            daemon=True,
        )
        self.process.start()


def _work(parent: int, rank: int, requests: Any, preloads: Any, completions: Any, level: int, nice: int) -> None:
    """The writer process. It must not outlive a killed trainer, holding its memory and writing on. A trainer that is
    killed before it sent a request would leave it waiting for ever: it holds both ends of its own queue."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    libc.prctl(PR_SET_NAME, PROCESS_NAME)
    close_sockets()  # of a forked one: the rank monitor would take the rank's own for alive as long as this holds it
    # cpu_shm_mode: this process gets CPU tensors only and must not touch CUDA.
    PersistentAsyncCaller.async_loop_for_daemon_worker(rank, requests, preloads, completions, level, nice, None, True)


@dataclass(frozen=True)
class Ticket:
    """A request that was submitted. `process` tells a restarted writer from the one that got the request."""

    number: int
    process: int
    since: float


class Writer:
    """The writer process of this rank. Survives in-process restarts; requests are done one after the other."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._caller: PersistentAsyncCaller | None = None
        # Not torch.zeros: to fill so much, and to copy it, torch starts its threads, and then no fork would do.
        shared = torch.UntypedStorage._new_shared(OUTCOMES * OUTCOME_BYTES + SWITCH_BYTES)  # zeros, as all new files
        self._outcome = torch.empty(0, dtype=torch.uint8).set_(shared)
        self._submitted = 0
        self._requests = 0
        self._completed = 0
        self._ends: dict[int, str] = {}
        """Process id of the writer that was given up last, and why."""
        self._dying: list[Any] = []
        """Processes that were killed and were still in a system call."""
        self._preparation: tuple[Callable[..., Any], tuple[Any, ...]] | None = None

    def start(self, fork: bool = False) -> None:
        """Start the process now (it imports torch meanwhile), so that the first save does not wait for it. A process
        that cannot be started is tried again by the next request, which then fails.

        fork: of this process, which saves the imports, unless that would not be as good as a new interpreter."""
        start_together([self], fork=fork)

    def _require_process(self) -> None:
        """Start the process unless it is there. Raises WriterFailed if the machine has no room for another one."""
        if self._caller is not None and not self._caller.process.is_alive():
            logger.warning("the writer process of rank %d ended while it was idle and is replaced", self._rank)
            self.abort()
        if self._caller is None:
            self._start_process("spawn")
            self._greet()

    def _start_process(self, method: str) -> None:
        try:
            caller = _Caller(cpu_priority=NICE, sigterm_timeout=1.0, cpu_shm_mode=True)
            caller.rank, caller.method = self._rank, method
            caller._start_worker(self._rank)
        except OSError as error:
            raise WriterFailed(f"the writer process of rank {self._rank} could not be started: {error}") from error
        self._caller = caller

    def _greet(self) -> None:
        """Send what a new process needs. The first request starts a thread here."""
        self._send(settle, Handle.of(self._outcome))
        if self._preparation is not None:
            function, arguments = self._preparation
            self._send(function, *arguments)

    def prepare(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run function(*arguments) in the process now, and again in each process that replaces it: what all later
        requests need, sent once. Its result is not looked at; if it fails, so does the next request."""
        before, self._preparation = self._caller, (function, arguments)
        self.start()
        if self._caller is not None and self._caller is before:
            self._send(function, *arguments)

    @property
    def busy(self) -> bool:
        """Whether something that was submitted has not been completed."""
        return self._caller is not None and self._last_completed() < self._submitted

    @property
    def pid(self) -> int | None:
        """Process id of the writer."""
        return self._caller.process.pid if self._caller and self._caller.process else None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ticket:
        """Have function(*arguments) called in the process. Both must pickle; the result must be JSON.

        Raises WriterFailed if there is no process and none can be started.
        """
        self._require_process()
        self._submitted = self._requests + 1  # first: an abort of the attempt may strike between the two
        self._send(report, self._submitted, function, arguments)
        return Ticket(self._requests, self.pid or 0, time.monotonic())

    def result(self, ticket: Ticket, limit_s: float) -> Any | None:
        """What the request returned (None never is a result), or None while it is not done.

        Raises WriterFailed if it failed, the process died, or `limit_s` have passed since it was submitted. A process
        that is late is killed first, and what a dead one has left counts: whether a request was done is a fact then.
        """
        if not self._serves(ticket):
            return self._left_behind(ticket, self._ends.get(ticket.process, f"of rank {self._rank} was replaced"))
        if self._last_completed() >= ticket.number:
            return self._left_behind(ticket, f"of rank {self._rank} has no result of request {ticket.number}")
        assert self._caller is not None
        process = self._caller.process
        if not process.is_alive():
            return self._end(ticket, f"process of rank {self._rank} ended with code {process.exitcode}")
        if time.monotonic() - ticket.since > limit_s:
            why = f"took longer than checkpoint.persist_timeout_s allows, {limit_s:.4g} s"
            return self._end(ticket, f"of rank {self._rank} {why}")
        return None

    def _end(self, ticket: Ticket, why: str) -> Any:
        """End the process; what it has left of the request. Its other requests come to the same end."""
        self._ends = {ticket.process: why}
        self.abort(ITS_END_S)
        return self._left_behind(ticket, why)

    def call_off(self, ticket: Ticket) -> None:
        """Tell a request that asks `called_off` to end. It may be too late for that: its result says what became."""
        if self._serves(ticket):
            switch(self._outcome)[0] = ticket.number

    def abort(self, limit_s: float = LET_GO_S) -> None:
        """Kill the process and forget its work; the next request starts a new one. limit_s: of the wait for its end."""
        caller, self._caller = self._caller, None
        self._requests = self._submitted = self._completed = 0
        if caller is None or caller.process is None:
            return
        process, caller.process = caller.process, None
        process.kill()
        process.join(limit_s)
        if process.exitcode is None:
            self._dying.append(process)  # in the middle of a write to the storage: it ends when that returns
        self._dying = [one for one in self._dying if one.exitcode is None]  # asking collects those that have ended
        switch(self._outcome)[0] = 0
        for channel in (caller.queue, caller.preload_q, caller.comp_q):
            # What is still in the pipe is for a dead reader; joining its feeder thread would wait for ever.
            channel.cancel_join_thread()
            channel._reader.close()  # ours keeps the pipe alive, and a large request would block the feeder for ever
            channel.close()

    def close(self) -> None:
        """End the process."""
        self.abort()

    def _send(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._caller is not None
        self._requests += 1
        request = AsyncRequest(async_fn=function, async_fn_args=arguments, finalize_fns=[], async_fn_kwargs={})
        self._caller.schedule_async_call(request._replace(call_idx=self._requests))

    def _serves(self, ticket: Ticket) -> bool:
        """Whether the process that got the request is still ours."""
        return self._caller is not None and self.pid == ticket.process

    def _last_completed(self) -> int:
        """Number of the last request that the process has completed."""
        assert self._caller is not None
        while True:
            try:
                self._completed = self._caller.comp_q.get_nowait()
            except queue.Empty:
                return self._completed

    def _left_behind(self, ticket: Ticket, otherwise: str) -> Any:
        """What the process has left of the request. Raises WriterFailed if that is an error or, with `otherwise`,
        nothing: a process that was killed may have left half a result."""
        content = bytes(place(self._outcome, ticket.number)).rstrip(b"\0")
        try:
            outcome = json.loads(content)
        except ValueError:
            outcome = {}
        if (outcome.get("request"), outcome.get("process")) != (ticket.number, ticket.process):
            raise WriterFailed(f"the writer {otherwise}")
        if "error" in outcome:
            raise WriterFailed(outcome["error"], outcome["kind"])
        return outcome["result"]


def start_together(writers: Sequence[Writer], *, fork: bool) -> None:
    """`start` for all of them: those that are not there get their processes before the first of them gets a request,
    which starts a thread in this process."""
    new = []
    for writer in writers:
        try:
            if writer.pid is None:
                writer._start_process(_method(writer) if fork else "spawn")
                new.append(writer)
            else:
                writer._require_process()
        except WriterFailed as error:
            logger.warning("%s", error)
    for writer in new:
        writer._greet()


def _method(writer: Writer) -> str:
    unfit = unfit_to_fork()
    if unfit is not None:
        logger.info("the writer of rank %d starts an interpreter of its own: %s", writer._rank, unfit)
    return "fork" if unfit is None else "spawn"
