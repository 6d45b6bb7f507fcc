"""The control pod: it owns the run directory, and runs nvrx-control, whose store everything else meets in."""

from __future__ import annotations

import logging
import time

from holdfast import launch
from holdfast.config import dump, names
from holdfast.run_directory import Owner, write_atomically
from trainer import preflight
from trainer.child import Child
from trainer.metrics.beside import Accountant
from trainer.pod.archivist import Archivist
from trainer.pod.pod import POLL_S, Pod
from trainer.pod.succession import Succession
from trainer.pod.verdict import Outcome, clear_named_terminal
from trainer.pod.watch import Watch
from trainer.restart.budget import Budget

PORT_S = 10.0
"""How long the port of a store that was killed may take to be free again."""


def control(pod: Pod) -> Outcome:
    """Own the run for one generation, or for several of different sizes. Raises RunIsOwned, StaleGeneration."""
    for warning in preflight.warnings(pod.config, pod.run.path):
        logging.warning("%s", warning)
    taken = preflight.port_taken(pod.port)
    if taken:
        return Outcome(names.EXIT_RETRY, f"port {pod.port} of the store is taken: {taken}. End what listens there.")
    lease_s = pod.config.recovery.owner_lease_s
    owner = pod.run.take(
        nodes=pod.config.cluster.nodes,
        job=pod.job,
        jobset_attempt=pod.jobset_attempt,
        pod=pod.name,
        lease_s=lease_s,
    )
    if (aside := clear_named_terminal(pod)) is not None:
        logging.warning("%s was set aside as %s: resume.clear_terminal names it", names.TERMINAL, aside.name)
    write_atomically(pod.run.path / names.RUN_YAML, dump(pod.config))
    succession = Succession(pod) if pod.config.recovery.in_job else None
    try:
        while True:
            outcome = _one_generation(pod, owner, succession)
            if outcome is not None or succession is None:
                return outcome or Outcome(names.EXIT_PREEMPTED, "another generation of this pod's job owns the run")
            before, owner = owner, pod.run.next_generation(owner, succession.next_nodes, lease_s)
            succession.began(before, owner)
    finally:
        pod.run.release(owner.generation)


def _one_generation(pod: Pod, owner: Owner, succession: Succession | None) -> Outcome | None:
    """How the pod ends, or None if another generation follows in it."""
    argv = launch.control_argv(pod.config, generation=owner.generation, nodes=owner.nodes, port=pod.port)
    lease = Lease(pod, owner)
    budget = Budget(pod.run, owner, pod.config.recovery)
    accountant = Accountant(pod, owner.nodes * pod.config.cluster.ranks_per_node)
    archivist = Archivist(pod)

    def look_after(_: Child) -> str | None:
        lease.renew()
        accountant.keep()
        archivist.keep()
        if (terminal := budget.look()) is not None:
            logging.error("%s", terminal.reason)
        return None if succession is None or pod.departure.why is not None else succession.look(owner)

    _await_port(pod)
    return Watch(pod, owner, look_after).run(argv)


def _await_port(pod: Pod) -> None:
    """Until the store of the generation before has gone; if it does not, nvrx-control says so itself."""
    deadline = time.monotonic() + PORT_S
    while preflight.port_taken(pod.port) and time.monotonic() < deadline:
        time.sleep(POLL_S)


class Lease:
    """The owner's sign of life, renewed three times in recovery.owner_lease_s."""

    def __init__(self, pod: Pod, owner: Owner) -> None:
        self._pod = pod
        self._owner = owner
        self._beats = 0
        self._next_beat = 0.0

    def renew(self) -> None:
        """Beat if it is time to. Raises StaleGeneration if another generation owns the run."""
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + self._pod.config.recovery.owner_lease_s / 3
            self._beats += 1
            try:
                self._pod.run.require_generation(self._owner.generation)
                self._pod.run.beat(self._owner.generation, self._beats)
            except OSError as error:
                # A full disk, say. Training goes on; should another job take the run meanwhile, the next look sees it.
                logging.warning("the lease of generation %d is not renewed: %s", self._owner.generation, error)
