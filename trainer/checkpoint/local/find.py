"""Which local save can be restored, and who reads whose part from where. Pure: nothing here touches a disk or a peer.

Parts are matched by the rank that saved them, as their records say. Who holds one now, and on which node, is whatever
the ranks report: a promoted spare holds nothing, a node that changed its place holds the parts of other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from holdfast.lineage import Begun, in_history
from trainer.checkpoint.local.part import Part, Save


@dataclass(frozen=True)
class Copy:
    """A part that lies somewhere, as a rank reports it."""

    save: Save
    rank: int
    world_size: int
    layout_hash: str
    bytes: int

    @classmethod
    def of(cls, part: Part) -> Copy:
        """What others need to know of a part: all but its checksums."""
        return cls(part.save, part.rank, part.world_size, part.layout_hash, part.bytes)


@dataclass(frozen=True)
class Seen:
    """What one rank sees on its node. node: name of the disk. layout_hash: of the state that this rank must fill."""

    node: str
    layout_hash: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Flaw:
    """A copy that turned out damaged, on the disk named."""

    node: str
    save: Save
    rank: int


@dataclass(frozen=True)
class Candidate:
    """A local save that can be restored. sources[r]: who reads rank r's part, r itself where its own node has it."""

    save: Save
    bytes: int
    sources: tuple[int, ...]

    @property
    def step(self) -> int:
        """The step that it holds."""
        return self.save.step

    @property
    def transfers(self) -> tuple[tuple[int, int], ...]:
        """(reader, receiver) of every part that has to travel, in the one order in which all ranks do them."""
        return tuple((source, rank) for rank, source in enumerate(self.sources) if source != rank)


def plan(
    seen: Sequence[Seen], begun: Sequence[Begun], flaws: Collection[Flaw] = (), above: int = -1
) -> tuple[Candidate | None, list[str]]:
    """The newest save that every rank can get back, or None; and why newer ones were passed over.

    seen: by present rank. begun: the run's attempts. above: only saves of later steps are wanted.
    """
    order = {entry.attempt: place for place, entry in enumerate(begun)}
    saves = {copy.save for one in seen for copy in one.copies if copy.save.step > above}
    messages = []
    for save in sorted(saves, key=lambda s: (s.step, order.get(s.attempt, -1), s.serial), reverse=True):
        if not in_history(list(begun), save.attempt, save.step):
            messages.append(f"{save.folder}: training went back behind it, or never made it")
            continue
        found = _sources(save, seen, flaws)
        if isinstance(found, Candidate):
            return found, messages
        messages.append(f"{save.folder}: {found}")
    return None, messages


def _sources(save: Save, seen: Sequence[Seen], flaws: Collection[Flaw]) -> Candidate | str:
    """Who reads what, or why not every rank can have its part."""
    world = len(seen)
    holders: list[list[int]] = [[] for _ in range(world)]
    reasons: dict[int, str] = {}
    sizes: dict[int, int] = {}
    for rank, one in enumerate(seen):
        for copy in one.copies:
            if copy.save != save or Flaw(one.node, save, copy.rank) in flaws:
                continue
            if copy.world_size != world:
                return f"saved by {copy.world_size} ranks, and this attempt has {world}"
            if copy.layout_hash != seen[copy.rank].layout_hash:
                reasons[copy.rank] = "it has another layout"
                continue
            holders[copy.rank].append(rank)
            sizes[copy.rank] = copy.bytes
    missing = [f"{rank} ({reasons.get(rank, 'no node has it')})" for rank in range(world) if not holders[rank]]
    if missing:
        return f"parts missing: rank {', '.join(missing)}"
    return Candidate(save, sum(sizes.values()), _spread(holders))


def _spread(holders: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """For each rank itself, if it holds its part, else the holder that sends least so far."""
    sends: dict[int, int] = {}
    sources = []
    for rank, who in enumerate(holders):
        source = rank if rank in who else min(who, key=lambda holder: (sends.get(holder, 0), holder))
        if source != rank:
            sends[source] = sends.get(source, 0) + 1
        sources.append(source)
    return tuple(sources)


def neighbour(rank: int, ranks_per_node: int, world_size: int) -> int | None:
    """Who keeps the copy of a rank's part: the same place on the next node. None on a single node."""
    other = (rank + ranks_per_node) % world_size
    return other if world_size > ranks_per_node else None
