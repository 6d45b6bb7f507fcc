"""Layer 1: NVRx's inprocess.Wrapper around one attempt. The only door to nvidia_resiliency_ext.inprocess.

The wrapper's store is the control pod's, under a prefix of its own per launcher cycle: it outlives every rank, and no
port has to be free. NVRx's own default puts the store into rank 0's process, whose death then ends the job.
"""

# No `from __future__ import annotations` here: NVRx 0.6.0 injects the CallWrapper only into a parameter whose
# annotation is the class itself, not its name.

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from typing import Any

from holdfast.config import RunConfig
from holdfast.config.recovery import Recovery
from trainer.restart.release import release
from trainer.runtime import STORE_TIMEOUT, Attempt, Identity

PENDING_CALLS = 32
"""Calls that CPython queues for a main thread that does not run. NVRx's watchdog queues one per interval and tells the
monitor each time, which looks at its timeouts only when it is told nothing: not before the queue is full. Measured on
2 x H200 with an interval of 0.2 s: a hang was noticed after 6.0 s with a soft timeout of 5 s, and with one of 3 s
together with the hard one of 6 s, which killed the rank."""

LAST_CALL = timedelta(seconds=0.02)
"""What NVRx waits for more ranks to tell what interrupted them, before it restarts all: part of every recovery. Such
ranks are named in one message; they are restarted either way."""


Off = Callable[[], AbstractContextManager[None]]


class HangWatch:
    """Whether layer 1 looks for hangs. Not while an attempt starts: a rank that waits in native code for a slow peer's
    restore, or for code to be compiled, looks like one. The sections of layer 2 have limits for that."""

    def __init__(self, off: Off = nullcontext, atomic: Off = nullcontext) -> None:
        """off: nothing is taken for a hang in the body of what it returns. atomic: layer 1 strikes only behind it. By
        default there is no layer 1."""
        self._off = off
        self.atomic = atomic
        self._starting = ExitStack()
        self._started = False

    def __enter__(self) -> "HangWatch":
        self._starting.enter_context(self._off())
        return self

    def __exit__(self, *_: object) -> None:
        self._starting.close()

    def started(self) -> None:
        """From now on it looks: start-up, restore and first steps are over. May be called again."""
        self._started = True
        self._starting.close()

    def off(self) -> AbstractContextManager[None]:
        """For something else that may take long in native code."""
        return self._off() if self._started else nullcontext()


Body = Callable[[Attempt, HangWatch], None]


def preload() -> None:
    """Import what `run` needs if recovery.in_process."""
    import nvidia_resiliency_ext.inprocess  # noqa: F401


def run(config: RunConfig, identity: Identity, body: Body, why_not: Callable[[int], str | None]) -> None:
    """Call body(attempt, watch) until it returns; restart it in this process on a fault if recovery.in_process.

    why_not: asked before each attempt, with its number. Unless it says None, none is made and the process ends, for
    layer 2 to see.
    """
    if not config.recovery.in_process:
        body(Attempt(identity.generation, identity.cycle, 0), HangWatch())
        return
    from nvidia_resiliency_ext import inprocess

    def attempt_of(wrapper: inprocess.CallWrapper) -> None:
        try:
            with HangWatch(wrapper.disable_hang_protection, wrapper.atomic) as watch:
                body(Attempt(identity.generation, identity.cycle, wrapper.iteration), watch)
        except BaseException as error:
            # The wrapper keeps the exception, and with it every frame of the dead attempt.
            release(error, gloo=config.device == "cpu")
            raise

    attempt_of.__annotations__["wrapper"] = inprocess.CallWrapper
    _wrapper(config, identity, why_not)(attempt_of)(None)


def watchdog_interval(r: Recovery) -> timedelta:
    """How often NVRx looks whether the main thread runs: so often that PENDING_CALLS looks are over in half of the soft
    timeout."""
    soft = timedelta(seconds=r.in_process_soft_timeout_s)
    return min(timedelta(seconds=r.in_process_interval_s), soft / (2 * PENDING_CALLS))


def _wrapper(config: RunConfig, identity: Identity, why_not: Callable[[int], str | None]) -> Any:
    from nvidia_resiliency_ext import inprocess

    class StopRule(inprocess.initialize.Initialize):  # type: ignore[misc]
        """Ends the wrapper before an attempt that is not to be made."""

        def __call__(self, state: Any) -> Any:
            why = why_not(state.iteration)
            if why is not None:
                raise inprocess.exception.RestartAbort(why)
            return state

    r = config.recovery
    interval = timedelta(seconds=r.in_process_interval_s)
    # A context that an illegal access has broken stays broken in this process: every further attempt would fail alike,
    # until the stop rule ends the run. The check ends the process, and layer 2 starts a new one.
    soft = timedelta(seconds=r.in_process_soft_timeout_s)
    healthy = inprocess.health_check.CudaHealthCheck(soft) if config.device == "cuda" else None
    wrapper = inprocess.Wrapper(
        store_factory=control_store(),
        store_kwargs={"address": identity.store, "prefix": f"inprocess/g{identity.generation}-c{identity.cycle}"},
        initialize=inprocess.Compose(
            # A smaller world would train on with another batch; losing a rank is layer 2's business.
            inprocess.initialize.RetryController(
                max_iterations=r.max_in_process_restarts,
                min_world_size=identity.world_size,
                min_active_world_size=identity.world_size,
            ),
            StopRule(),
        ),
        monitor_thread_interval=interval,
        monitor_process_interval=interval,
        heartbeat_interval=interval,
        progress_watchdog_interval=watchdog_interval(r),
        last_call_wait=min(interval, LAST_CALL),
        health_check=healthy,
        soft_timeout=soft,
        hard_timeout=timedelta(seconds=r.in_process_hard_timeout_s),
        heartbeat_timeout=timedelta(seconds=r.in_process_heartbeat_timeout_s),
        barrier_timeout=timedelta(seconds=r.in_process_barrier_timeout_s),
        completion_timeout=timedelta(seconds=r.in_process_barrier_timeout_s),
    )
    if config.device == "cpu":
        # Its GPU health check fails on every machine without NVML, and would end each restart.
        wrapper.restart_health_check = None
    return wrapper


def control_store() -> Any:
    """The store class that NVRx wants: the control pod's store as a client, every key under a prefix."""
    import torch.distributed as dist
    from nvidia_resiliency_ext.inprocess.store import StoreMixin

    class ControlStore(dist.PrefixStore, StoreMixin):  # type: ignore[misc]
        def __init__(self, address: str, prefix: str) -> None:
            host, _, port = address.rpartition(":")
            base = dist.TCPStore(host, int(port), is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
            super().__init__(prefix, base)

        def termination_barrier(self, ranks: Iterable[Any], **limits: Any) -> None:
            # NVRx 0.6.0 (sibling_monitor.py, line 150) gives ranks that it calls unresponsive as the store's bytes, and
            # writes them down as b'1'. Whoever came to this barrier later could not read that, and ended by ValueError.
            super().termination_barrier(ranks=[int(rank) for rank in ranks], **limits)

    return ControlStore
