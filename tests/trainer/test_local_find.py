"""Which local save is restored and from where: by content, whatever has become of ranks and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from holdfast.lineage import Begun
from trainer.checkpoint.local.find import Candidate, Copy, Flaw, Seen, neighbour, plan
from trainer.checkpoint.local.part import Save

A, B = "g1-c0-r0", "g1-c1-r0"
S20, S30 = Save(20, A, 2), Save(30, A, 3)
HISTORY = [Begun(A, 0), Begun(B, None)]
Disk = dict[Save, set[int]]
"""Save -> saved ranks whose parts lie there."""


def cluster(*disks: Disk, per_node: int = 1, world_saved: int | None = None, layouts: Iterable[str] = ()) -> list[Seen]:
    """What the ranks of an attempt report, node by node."""
    world = len(disks) * per_node
    layout = list(layouts) or [f"layout-{rank}" for rank in range(world)]
    seen = []
    for rank in range(world):
        copies = tuple(
            Copy(save, saved, world_saved or world, f"layout-{saved}", 100)
            for save, ranks in disks[rank // per_node].items()
            for saved in sorted(ranks)
        )
        seen.append(Seen(f"node-{rank // per_node}", layout[rank], copies))
    return seen


def healthy(nodes: int, *saves: Save, per_node: int = 1) -> list[Disk]:
    """Disks after saves with a replica on the next node."""

    def ranks(node: int) -> set[int]:
        return set(range(node * per_node, (node + 1) * per_node))

    return [{save: ranks(node) | ranks((node - 1) % nodes) for save in saves} for node in range(nodes)]


def found(seen: list[Seen], begun: list[Begun] = HISTORY, above: int = -1) -> Candidate:
    candidate, messages = plan(seen, begun, above=above)
    assert candidate is not None, messages
    return candidate


def test_everyone_at_home_reads_its_own_part_of_the_newest_save() -> None:
    candidate = found(cluster(*healthy(4, S20, S30)))
    assert (candidate.save, candidate.sources, candidate.transfers) == (S30, (0, 1, 2, 3), ())
    assert candidate.bytes == 400


def test_a_promoted_empty_spare_is_served_by_the_neighbour_of_the_lost_node() -> None:
    disks = healthy(4, S30)
    disks[1] = {}
    assert found(cluster(*disks)).sources == (0, 2, 2, 3)


def test_two_nodes_that_changed_places_serve_each_other() -> None:
    disks = [{S30: {0}}, {S30: {1}}, {S30: {2}}, {S30: {3}}]
    disks[1], disks[2] = disks[2], disks[1]
    assert found(cluster(*disks)).transfers == ((2, 1), (1, 2))


def test_two_neighbours_lost_at_once_leave_nothing_to_restore() -> None:
    disks = healthy(4, S20, S30)
    disks[1] = disks[2] = {}
    candidate, messages = plan(cluster(*disks), HISTORY)
    assert candidate is None
    assert messages[0] == f"{S30.folder}: parts missing: rank 1 (no node has it)"


def test_two_nodes_lost_that_are_not_neighbours_lose_nothing() -> None:
    disks = healthy(4, S30)
    disks[0] = disks[2] = {}
    assert found(cluster(*disks)).sources == (1, 1, 3, 3)


def test_a_save_that_is_not_whole_is_passed_over_for_an_older_one() -> None:
    disks = healthy(3, S20)
    disks[0][S30] = {0, 2}
    candidate, messages = plan(cluster(*disks), HISTORY)
    assert candidate is not None
    assert candidate.save == S20
    assert messages == [f"{S30.folder}: parts missing: rank 1 (no node has it)"]


def test_a_node_that_comes_back_with_an_abandoned_time_line_is_refused() -> None:
    begun = [Begun(A, 0), Begun(B, 20), Begun("g1-c2-r0", None)]
    ours = Save(24, B, 1)
    candidate, messages = plan(cluster(*healthy(2, S20, ours, S30)), begun)
    assert candidate is not None
    assert candidate.save == ours
    assert messages == [f"{S30.folder}: training went back behind it, or never made it"]


def test_a_save_of_an_attempt_that_nobody_knows_is_refused() -> None:
    assert plan(cluster(*healthy(2, Save(30, "g9-c0-r0", 1))), HISTORY)[0] is None


def test_of_the_same_step_the_later_attempt_counts() -> None:
    later = Save(20, B, 1)
    begun = [Begun(A, 0), Begun(B, 20), Begun("g1-c2-r0", None)]
    assert found(cluster(*healthy(2, S20, later)), begun).save == later


def test_another_world_size_is_no_candidate() -> None:
    candidate, messages = plan(cluster({S30: {0, 1}}, {S30: {1, 2}}, world_saved=3), HISTORY)
    assert candidate is None
    assert "saved by 3 ranks, and this attempt has 2" in messages[0]


def test_another_layout_is_no_candidate_and_says_whose() -> None:
    candidate, messages = plan(cluster(*healthy(2, S30), layouts=["layout-0", "other"]), HISTORY)
    assert candidate is None
    assert messages == [f"{S30.folder}: parts missing: rank 1 (it has another layout)"]


def test_a_damaged_copy_is_replaced_by_the_neighbours() -> None:
    flaws = {Flaw("node-1", S30, 1)}
    seen = cluster(*healthy(3, S20, S30))
    candidate, _ = plan(seen, HISTORY, flaws)
    assert candidate is not None
    assert (candidate.save, candidate.sources) == (S30, (0, 2, 2))
    older, _ = plan(seen, HISTORY, flaws | {Flaw("node-2", S30, 1)})
    assert older is not None
    assert older.save == S20


def test_what_is_not_newer_than_the_shared_checkpoint_is_not_wanted() -> None:
    assert plan(cluster(*healthy(2, S20, S30)), HISTORY, above=30)[0] is None
    assert found(cluster(*healthy(2, S20, S30)), above=20).save == S30


def test_the_ranks_of_a_node_share_the_sending() -> None:
    disks = healthy(3, S30, per_node=8)
    disks[1] = {}
    candidate = found(cluster(*disks, per_node=8))
    assert Counter(source for source, _ in candidate.transfers) == Counter(range(16, 24))


def test_nothing_anywhere_is_nothing() -> None:
    assert plan(cluster({}, {}), HISTORY) == (None, [])


@pytest.mark.parametrize(
    ("rank", "per_node", "world", "expected"), [(0, 8, 16, 8), (15, 8, 16, 7), (2, 1, 3, 0), (0, 4, 4, None)]
)
def test_the_neighbour_is_the_same_place_on_the_next_node(
    rank: int, per_node: int, world: int, expected: int | None
) -> None:
    assert neighbour(rank, per_node, world) == expected
