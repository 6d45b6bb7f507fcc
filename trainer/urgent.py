"""The urgent save: all ranks agree on one step, save there, and leave with code 75. The rank's side of departure.py.

Agreement takes no collective: one key of the attempt's store, at which every rank looks at the end of every step. A
rank that was asked to leave and finds it empty at the end of step s sets it to s + 1 before it enters step s + 1; the
first one to set it wins. Then every rank saves after s + 1 and none after another step:

- Nobody misses it. A step ends with the norm of the gradients over all ranks, which is read before the update. So
  nobody ends step s + 1 before the rank that set the key has entered it, and it set the key before that. Whoever looks
  at the end of s + 1 sees it.
- Nobody has gone beyond it, by the same reason: when the key was set, nobody had ended s + 1.
- There is one value only. compare_set is atomic, and whoever looks later finds the key set.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.config import names
from trainer.departure import Request, asked, mark_of

if TYPE_CHECKING:
    from torch.distributed import Store

    from trainer.checkpoint import Checkpoints
    from trainer.train import Survivors

logger = logging.getLogger(__name__)

STEP = "urgent/step"
"""Store key: JSON of an Agreed."""
GONE = "urgent/gone"
"""Store key: counts the ranks that are about to leave."""
RESERVE_S = 2.0
"""Of the time until ranks are killed, at most so much is kept for leaving."""
TOGETHER_S = 1.0
"""Ranks that are ready to leave wait so long for the others: the end of the first ends them too, by their launchers."""
POLL_S = 0.01


@dataclass(frozen=True)
class Agreed:
    """All ranks leave after `step`. rank: who asked, for the reason `why`. left_s: until the ranks of that one's pod
    are killed, when it asked."""

    step: int
    rank: int
    why: str
    left_s: float


class Leaving(Exception):
    """All ranks leave now: nothing is wrong, and nothing may restart this process."""

    def __init__(self, message: str, store: Store, world_size: int) -> None:
        super().__init__(message)
        self._store = store
        self._world_size = world_size

    def together(self) -> None:
        """Wait until every rank has come this far, for TOGETHER_S at most."""
        deadline = time.monotonic() + TOGETHER_S
        try:
            self._store.add(GONE, 1)
            while self._store.add(GONE, 0) < self._world_size and time.monotonic() < deadline:
                time.sleep(POLL_S)
        except RuntimeError:
            pass  # the store has gone first


class Agreement:
    """One rank's part in the agreement. `look` at the end of every step, before the next is entered."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank

    def look(self, step: int, last: int, request: Request | None) -> Agreed | None:
        """What all ranks do after `step`, or None to go on. last: the step that ends the run; after it, and right
        before it, nobody need agree on anything. request: what this rank was asked.

        Costs one question to the store. Raises RuntimeError if that does not answer.
        """
        if step >= last:
            return None
        if self._store.check([STEP]):
            agreed = Agreed(**json.loads(self._store.get(STEP)))
            return agreed if agreed.step == step else None
        if request is not None and step + 1 < last:
            left_s = request.until - time.monotonic()
            self._ask(Agreed(step + 1, self._rank, request.why, left_s))
        return None

    def _ask(self, mine: Agreed) -> None:
        text = json.dumps(vars(mine))
        if self._store.compare_set(STEP, "", text).decode() == text:
            what = "%s: rank %d asks all ranks to save and leave after step %d; %.1f s are left"
            logger.warning(what, mine.why, mine.rank, mine.step, mine.left_s)


class Urgent:
    """The urgent save of one attempt. In the body of `with`, call `after_step` at the end of every step."""

    def __init__(self, survivors: Survivors, checkpoints: Checkpoints) -> None:
        from torch.distributed.distributed_c10d import _get_default_store

        identity = survivors.identity
        self._store = _get_default_store()
        self._agreement = Agreement(self._store, identity.rank)
        self._world_size = identity.world_size
        self._checkpoints = checkpoints
        self._log = survivors.log
        self._last = survivors.config.training.steps
        self._longest_s = survivors.config.recovery.term_timeout_s
        scratch = os.environ.get(names.ENV_SCRATCH)
        self._scratch = Path(scratch) if scratch else None
        self._mark = mark_of(self._scratch, os.getpid()) if self._scratch else None
        self._looked = time.monotonic()
        self._deaf = False

    def __enter__(self) -> Urgent:
        if self._mark:
            self._mark.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mark and kind is not Leaving:  # one that leaves still has to say so
            self._mark.unlink(missing_ok=True)

    def after_step(self, step: int) -> None:
        """Raise Leaving if all ranks leave after this step, saved or not."""
        request = asked(self._scratch) if self._scratch else None
        before, self._looked = self._looked, time.monotonic()
        try:
            agreed = self._agreement.look(step, self._last, request)
        except RuntimeError as error:
            # Without the store no save can be committed any more. The launchers see that too, and end this process.
            if not self._deaf:
                logger.warning("the store does not answer, so no urgent save can be agreed on: %s", error)
            self._deaf = True
            return
        if agreed is None:
            return
        # The one that asked did so at the end of the step before, when this rank looked too: no clock of another node
        # is needed.
        left_s = min(agreed.left_s - (time.monotonic() - before), self._longest_s)
        if request is not None:
            left_s = min(left_s, request.until - time.monotonic())
        self._save(agreed, left_s - min(RESERVE_S, self._longest_s / 4))

    def _save(self, agreed: Agreed, limit_s: float) -> None:
        step, start = agreed.step, time.monotonic()
        asking = f"rank {agreed.rank} asked for it: {agreed.why}"
        logger.warning("step %d is the last one before all ranks leave (%s); %.1f s to save it", step, asking, limit_s)
        committed, why = False, "it could not be committed in time"
        try:
            committed = limit_s > 0 and self._checkpoints.save_urgently(step, limit_s)
        except Exception as error:  # noqa: BLE001  whatever it is: the pod goes, and so must this process
            why = f"saving failed: {error}"
        took_s = time.monotonic() - start
        self._log.point("urgent_save", step=step, committed=committed, asked_by=agreed.rank, why=agreed.why, s=took_s)
        if committed:
            outcome = f"step {step} is committed after {took_s:.1f} s"
        else:
            outcome = f"step {step} is lost after {took_s:.1f} s: {why}. The commit before it stands"
        logger.log(logging.INFO if committed else logging.ERROR, "%s; leaving with %d", outcome, names.EXIT_PREEMPTED)
        raise Leaving(f"{outcome}; {asking}", self._store, self._world_size)
