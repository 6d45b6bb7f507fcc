"""When a new generation follows in the same pods, and of which size. Pure: told what is, they say what should be.

A job that is short of a node waits recovery.shrink_after_s for one: a spare, or the lost node's replacement, which
takes its seat by itself. Only then it goes on with fewer. It grows when more nodes than it uses have been there for
recovery.grow_after_s and all its ranks train: they save the step at which they leave, so that growing loses none.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.config import RunConfig

LONGEST_HOLD = 16
"""A growth that is undone doubles the time that the next one waits, up to so many times recovery.grow_after_s: a node
that comes, fails and comes again must not cost two restarts each time."""


class SizeRule:
    """`wanted` at every look. One for the life of a control pod: it remembers what it has done."""

    def __init__(self, config: RunConfig) -> None:
        self._sizes = config.sizes
        self._ranks_per_node = config.cluster.ranks_per_node
        self._shrink_after_s = config.recovery.shrink_after_s
        self._grow_after_s = self._hold_s = config.recovery.grow_after_s
        self._short: tuple[float, int] | None = None
        """Since when nodes are missing, and how many were there at most since then."""
        self._larger: tuple[int, float] | None = None
        """The size to grow to, and since when it has been that one."""
        self._has_grown = False

    def fitting(self, present: int) -> int | None:
        """The largest size for so many nodes; None if they are too few for any."""
        return max((size for size in self._sizes if size <= present), default=None)

    def wanted(self, now: float, nodes: int, present: int, training: int) -> int | None:
        """The size to change to, or None.

        now: monotonic seconds. nodes: the present size. present: worker pods that are there, spares included. training:
        ranks that train. While one does, nobody is missing, whatever the heartbeats say.
        """
        fitting = self.fitting(present)
        if self._too_long_short(now, present if present < nodes and training == 0 else None) and fitting is not None:
            return fitting
        larger = fitting if fitting is not None and fitting > nodes else None
        all_train = training == nodes * self._ranks_per_node
        return larger if self._long_enough(now, larger) and all_train else None

    def changed(self, before: int, after: int) -> None:
        """Told when the size has changed: both waits begin anew."""
        self._short = self._larger = None
        if after > before:
            self._has_grown = True
        elif after < before and self._has_grown:
            self._has_grown = False
            self._hold_s = min(2 * self._hold_s, LONGEST_HOLD * self._grow_after_s)

    def _too_long_short(self, now: float, present: int | None) -> bool:
        """present: pods that are there; None if they are enough. The wait begins anew when more are there than before,
        so that pods which start one after the other are waited for; one that comes and goes is not."""
        if present is None:
            self._short = None
        elif self._short is None or present > self._short[1]:
            self._short = (now, present)
        return self._short is not None and now - self._short[0] >= self._shrink_after_s

    def _long_enough(self, now: float, larger: int | None) -> bool:
        if larger is None:
            self._larger = None
        elif self._larger is None or self._larger[0] != larger:
            self._larger = (larger, now)
        return self._larger is not None and now - self._larger[1] >= self._hold_s


LONGEST_REJOIN = 16
"""So many times recovery.rejoin_timeout_s is the longest wait for launchers that do not meet, however often they were
made anew: on machines that slow, patience beyond it cures nothing, and the restarts without progress are counted."""


class RejoinRule:
    """When launchers wait for one another in vain.

    A launcher of NVRx 0.6.0 that comes while a round is closed waits, without a limit, until a launcher of that round
    opens the next one. If all of that round have vanished at once, nobody ever does: not for the spares, and not for
    those that replace them (with one training node, its loss is enough). A new generation frees them: at once where all
    of the round were seen to vanish, and after a limit where launchers wait for another reason.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """recovery.rejoin_timeout_s, doubled with each time in a row that it was not enough to start a rank, up to
        LONGEST_REJOIN times."""
        self._least_s = limit_s
        self._since: float | None = None
        self._trained: set[str] = set()
        """Pods that have had a rank in this generation. Not only those of its last round, which looks now and then
        cannot tell: in a restart one pod has its rank back before the other, and would be taken for the whole round."""

    def abandoned(self, pods: Mapping[str, int]) -> bool:
        """Whether all pods that have trained in this generation have vanished. pods: those that are there, with their
        numbers of ranks."""
        self._trained |= {pod for pod, ranks in pods.items() if ranks}
        return bool(self._trained) and self._trained.isdisjoint(pods)

    def in_vain(self, now: float, enough: bool, ranks: int) -> bool:
        """Whether the limit is over. now: monotonic seconds. enough: whether as many launchers are there as train.
        ranks: processes of ranks."""
        if ranks:
            self.limit_s = self._least_s
        if ranks or not enough:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self.limit_s

    def made_anew(self) -> None:
        """Told when the launchers are made to start anew: on a slow machine they may have been about to."""
        self.limit_s = min(2 * self.limit_s, LONGEST_REJOIN * self._least_s)

    def began(self) -> None:
        """Told when the next generation owns the run."""
        self._since = None
        self._trained = set()
