"""Own times of all ranks come to rank 0: each sets one key of the attempt's store per window, and waits for no answer.

Rank 0 reads them one step after it has set its own. A step ends with a reduction over all ranks, so whoever has ended
step s + 1 knows that all have ended step s, and have set their key before. Costs rank 0 two questions to the store in
WINDOW_STEPS steps, and every other rank none.
"""

from __future__ import annotations

import json
import logging
from statistics import median
from typing import TYPE_CHECKING

from holdfast.config import RunConfig
from holdfast.goodput.events import EventLog
from trainer.runtime import Identity
from trainer.stragglers.judge import IN_A_ROW, WINDOW_STEPS, Judge, Pace, Slow
from trainer.stragglers.own_time import StepTime

if TYPE_CHECKING:
    from torch.distributed import Store

logger = logging.getLogger(__name__)

PREFIX = "stragglers/"
"""Store key of a rank: JSON of a window's last step and a Pace."""


class Stragglers:
    """One per attempt, on each rank. `after_step` at the end of every step."""

    def __init__(self, config: RunConfig, identity: Identity, log: EventLog, store: Store) -> None:
        self._store = store
        self._identity = identity
        self._log = log
        share = config.recovery.straggler_share
        self._judge = Judge(share) if share is not None and identity.rank == 0 else None
        self._measures = share is not None and identity.world_size > 1
        self._window: list[StepTime] = []
        self._unread: int | None = None
        """Last step of a window that was set and not yet read; rank 0 only."""
        self._deaf = False

    def after_step(self, step: int, time: StepTime | None) -> None:
        """Told the time of each step of the attempt that is no warm-up; None where it could not be measured.

        Windows end at multiples of WINDOW_STEPS, so that all ranks speak of the same steps.
        """
        if not self._measures or self._deaf:
            return
        try:
            if self._unread is not None:
                self._read(self._unread)
            if time is not None:
                self._window.append(time)
            if step % WINDOW_STEPS == 0:
                self._say(step)
        except RuntimeError as error:
            self._deaf = True  # without the store this attempt ends soon, or trains on without being compared
            logger.warning("the store does not answer, so ranks are not compared any more: %s", error)

    def _say(self, step: int) -> None:
        window, self._window = self._window, []
        if len(window) < WINDOW_STEPS // 2:
            return  # an attempt began in the middle of it
        own_s, step_s = (median(times) for times in zip(*((t.own_s, t.step_s) for t in window), strict=True))
        pace = [step, own_s, step_s, self._identity.node, self._identity.pod]
        self._store.set(f"{PREFIX}{self._identity.rank}", json.dumps(pace))
        if self._judge is not None:
            self._unread = step

    def _read(self, window: int) -> None:
        assert self._judge is not None
        self._unread = None
        keys = [f"{PREFIX}{rank}" for rank in range(self._identity.world_size)]
        if not self._store.check(keys):
            return
        paces = {}
        for rank, value in enumerate(self._store.multi_get(keys)):
            step, own_s, step_s, node, pod = json.loads(value)
            if step == window:
                paces[rank] = Pace(own_s, step_s, node, pod)
        new, over = self._judge.window(paces)
        for slow in new:
            self._name(slow, window)
        for slow in over:
            self._log.point("straggler_over", rank=slow.rank, node=slow.pace.node, step=window)
            logger.warning("rank %d (node %s) keeps up again since about step %d", slow.rank, slow.pace.node, window)

    def _name(self, slow: Slow, step: int) -> None:
        pace, steps = slow.pace, IN_A_ROW * WINDOW_STEPS
        self._log.point(
            "straggler",
            rank=slow.rank,
            node=pace.node,
            pod=pace.pod,
            factor=round(slow.factor, 3),
            share=round(slow.share, 4),
            own_s=round(pace.own_s, 6),
            median_s=round(slow.median_s, 6),
            step_s=round(pace.step_s, 6),
            step=step,
            steps=steps,
        )
        logger.warning(
            "rank %d (node %s) is slow: its own part of a step takes %.3f s, the median of all ranks is %.3f s. Others "
            "wait for it in %.0f %% of a step, since %d steps at least (recovery.straggler_share)",
            slow.rank,
            pace.node,
            pace.own_s,
            slow.median_s,
            100 * slow.share,
            steps,
        )
