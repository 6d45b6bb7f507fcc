"""The control pod's part in a new generation in the same pods: it counts, decides, asks the workers to leave the
present one, and says when the next may begin (docs/adr/0017).
"""

from __future__ import annotations

import logging
import time

from holdfast.members import Member, Members, forget
from holdfast.run_directory import Owner
from trainer.pod.pod import Pod
from trainer.pod.size_rule import RejoinRule, SizeRule


class Succession:
    """One per control pod. `look` while a generation runs; once it has returned a reason, `next_nodes` is the size of
    the next."""

    def __init__(self, pod: Pod) -> None:
        lease_s = pod.config.recovery.owner_lease_s
        self._pod = pod
        self._size = SizeRule(pod.config)
        self._rejoin = RejoinRule(pod.config.recovery.rejoin_timeout_s)
        self._members = Members(pod.run, pod.job, pod.jobset_attempt, lease_s)
        self._pause_s = lease_s / 6
        self._leave_s = pod.config.recovery.term_timeout_s + lease_s
        """Ranks have term_timeout_s to save; whoever has vanished meanwhile is known to be gone after a lease."""
        self._next_look = 0.0
        self._asked: tuple[str, float] | None = None
        """Why the workers were asked to leave the generation, and until when they are waited for."""
        self.next_nodes = 0
        forget(pod.run)

    def look(self, owner: Owner) -> str | None:
        """Why the generation is over, once all workers have left it; else None. Now and then costs one read for each
        worker pod."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + self._pause_s
        try:
            return self._look(owner, now)
        except OSError as error:
            logging.warning("no change of generation for now: %s", error)  # a full disk, say; the next look tries again
            return None

    def _look(self, owner: Owner, now: float) -> str | None:
        present = self._members.look()
        inside = [member for member in present if member.generation == owner.generation]
        if self._asked is None:
            self._decide(owner, len(present), inside, now)
            return None
        why, until = self._asked
        if inside and now < until:
            return None
        if inside:
            late = ", ".join(member.pod for member in inside)
            logging.error("pods that have not left generation %d in time: %s; it is over", owner.generation, late)
        # Somebody may have gone or come meanwhile; a size must be named in any case, and too few wait for the rest.
        self.next_nodes = self._size.fitting(len(present)) or min(owner.nodes, self._pod.config.min_nodes)
        return why

    def _decide(self, owner: Owner, present: int, inside: list[Member], now: float) -> None:
        training = sum(member.training for member in inside)
        enough, ranks = len(inside) >= owner.nodes, {member.pod: member.ranks for member in inside}
        abandoned = self._rejoin.abandoned(ranks)
        in_vain = self._rejoin.in_vain(now, enough, sum(ranks.values()))
        wanted = self._size.wanted(now, owner.nodes, present, training)
        if wanted is not None:
            whole = self._pod.config.cluster.nodes
            why = f"{present} worker pods are there, and {owner.nodes} of {whole} nodes train: on with {wanted} nodes"
            self._ask(owner, wanted, why, now)
        elif abandoned and enough:
            why = f"all pods that trained have vanished, and {len(inside)} others wait: launchers start anew"
            self._ask(owner, owner.nodes, why, now)
        elif in_vain:
            limit_s = self._rejoin.limit_s
            why = f"all {owner.nodes} nodes are there, and none has had a rank for {limit_s:g} s: launchers start anew"
            self._rejoin.made_anew()
            self._ask(owner, owner.nodes, why, now)

    def began(self, before: Owner, after: Owner) -> None:
        """Told when the next generation owns the run."""
        self._asked = None
        self._size.changed(before.nodes, after.nodes)
        self._rejoin.began()
        logging.warning("generation %d trains on %d nodes, after %d", after.generation, after.nodes, before.nodes)
        self._pod.log.point("next_generation", generation=after.generation, before=before.nodes, nodes=after.nodes)

    def _ask(self, owner: Owner, wanted: int, why: str, now: float) -> None:
        logging.warning("%s; all workers leave generation %d", why, owner.generation)
        self._pod.log.point(
            "next_generation_asked", generation=owner.generation, before=owner.nodes, nodes=wanted, why=why
        )
        self._pod.run.ask_to_move_on(owner.generation, why)
        self._asked = (why, now + self._leave_s)
