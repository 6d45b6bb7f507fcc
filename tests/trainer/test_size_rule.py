"""When the job changes its size: never while it trains, never back and forth, never to a size that does not divide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import RunConfig, load_profile
from trainer.pod.size_rule import LONGEST_HOLD, RejoinRule, SizeRule

SHRINK_S, GROW_S = 60.0, 30.0


def config(nodes: int = 4, least: int = 2, batch: int = 24, spares: int = 1) -> RunConfig:
    """cpu-test with two samples per pass; 24 divides over 1, 2, 3 and 4 nodes, 16 over 1, 2 and 4."""
    sets = [f"cluster.nodes={nodes}", f"recovery.min_nodes={least}", f"training.global_batch_size={batch}"]
    limits = [f"recovery.shrink_after_s={SHRINK_S}", f"recovery.grow_after_s={GROW_S}"]
    return load_profile("cpu-test", [*sets, *limits, f"recovery.spares={spares}"])


def first_change(rule: SizeRule, nodes: int, present: int, training: int, since: float, until: float) -> float | None:
    """Second at which the rule first wants another size while all stays as it is."""
    seconds = [since + second for second in range(int(until - since) + 1)]
    return next((now for now in seconds if rule.wanted(now, nodes, present, training) is not None), None)


def test_a_missing_node_is_waited_for_and_then_done_without() -> None:
    rule = SizeRule(config())
    assert first_change(rule, 4, present=3, training=0, since=0, until=100) == SHRINK_S
    assert rule.wanted(100, 4, 3, 0) == 3


def test_a_node_or_spare_that_comes_in_time_ends_the_wait() -> None:
    rule = SizeRule(config())
    assert first_change(rule, 4, present=3, training=0, since=0, until=SHRINK_S - 1) is None
    assert rule.wanted(SHRINK_S - 0.5, 4, 4, 0) is None
    assert first_change(rule, 4, present=3, training=0, since=SHRINK_S, until=1000) == 2 * SHRINK_S


def test_a_job_that_trains_is_not_made_smaller_whatever_the_heartbeats_say() -> None:
    """A supervisor that hangs, or whose storage is slow, is no reason to stop ranks that are well."""
    assert first_change(SizeRule(config()), 4, present=3, training=1, since=0, until=10_000) is None


def test_a_slow_start_with_all_nodes_there_is_not_a_shortage() -> None:
    assert first_change(SizeRule(config()), 4, present=4, training=0, since=0, until=10_000) is None


def test_too_few_for_the_smallest_size_wait() -> None:
    rule = SizeRule(config())
    assert first_change(rule, 4, present=1, training=0, since=0, until=10_000) is None
    assert first_change(rule, 4, present=2, training=0, since=10_001, until=20_000) == 10_001 + SHRINK_S


def test_pods_that_start_one_after_the_other_are_waited_for_and_one_that_comes_and_goes_is_not() -> None:
    """Two are there; from second 50 on a third comes every ten seconds and fails at once."""
    rule = SizeRule(config())
    wanted = [rule.wanted(second, 4, 3 if second >= 50 and second % 10 == 0 else 2, 0) for second in range(200)]
    assert next(second for second, size in enumerate(wanted) if size) == 50 + SHRINK_S


def test_a_size_over_which_the_batch_cannot_be_spread_is_left_out() -> None:
    rule = SizeRule(config(batch=16))
    assert first_change(rule, 4, present=3, training=0, since=0, until=100) == SHRINK_S
    assert rule.wanted(101, 4, 3, 0) == 2


def test_growing_waits_until_every_rank_trains() -> None:
    """Only then they can save the step at which they leave."""
    rule = SizeRule(config())
    assert first_change(rule, 2, present=3, training=1, since=0, until=1000) is None
    assert rule.wanted(1001, 2, 3, 2) == 3


def test_nodes_that_come_one_after_the_other_are_one_change_of_size() -> None:
    rule = SizeRule(config())
    assert first_change(rule, 2, present=3, training=2, since=0, until=GROW_S - 1) is None
    assert first_change(rule, 2, present=4, training=2, since=GROW_S, until=1000) == 2 * GROW_S
    assert rule.wanted(1001, 2, 4, 2) == 4


def test_after_a_change_the_next_one_waits_anew() -> None:
    """Four were wanted, one was lost meanwhile, and is back at once: not two restarts one after the other."""
    rule = SizeRule(config())
    assert first_change(rule, 2, present=4, training=2, since=0, until=100) == GROW_S
    rule.changed(2, 3)
    assert first_change(rule, 3, present=4, training=3, since=GROW_S + 1, until=1000) == 2 * GROW_S + 1


def test_a_spare_is_not_a_reason_to_grow_beyond_the_configured_size() -> None:
    assert first_change(SizeRule(config()), 4, present=5, training=4, since=0, until=10_000) is None


def test_each_growth_that_is_undone_doubles_the_next_wait_up_to_a_limit() -> None:
    rule, now, waits = SizeRule(config()), 0.0, []
    for _ in range(8):
        grows = first_change(rule, 3, present=4, training=3, since=now, until=now + 10_000)
        assert grows is not None
        waits.append(grows - now)
        rule.changed(3, 4)
        now = grows + 1
        assert first_change(rule, 4, present=3, training=0, since=now, until=now + 1000) == now + SHRINK_S
        rule.changed(4, 3)
        now += SHRINK_S + 1
    assert waits == [GROW_S * min(2**undone, LONGEST_HOLD) for undone in range(8)]


def first_vain(rule: RejoinRule, enough: bool, ranks: int, since: float) -> float | None:
    """Second of the next thousand at which launchers that stay as they are count as waiting in vain."""
    return next((since + s for s in range(1000) if rule.in_vain(since + s, enough, ranks)), None)


def test_launchers_wait_in_vain_when_all_are_there_and_none_has_a_rank() -> None:
    assert first_vain(RejoinRule(60), enough=True, ranks=0, since=0) == 60
    assert first_vain(RejoinRule(60), enough=True, ranks=1, since=0) is None
    assert first_vain(RejoinRule(60), enough=False, ranks=0, since=0) is None, "a missing node is waited for"


def test_a_rank_or_a_missing_node_ends_the_wait() -> None:
    rule = RejoinRule(60)
    for now, enough, ranks in ((0, True, 0), (59, True, 1), (60, True, 0), (119, False, 0), (120, True, 0)):
        assert not rule.in_vain(now, enough, ranks)
    assert first_vain(rule, enough=True, ranks=0, since=121) == 180


def test_a_round_is_abandoned_when_all_of_its_pods_have_vanished() -> None:
    """Not while one of them is left to open the next round, nor for a round that those who come have not seen."""
    rule = RejoinRule(60)
    assert not rule.abandoned({"a": 0, "b": 0, "spare": 0}), "nobody has trained yet"
    assert not rule.abandoned({"a": 1, "b": 1, "spare": 0})
    assert not rule.abandoned({"b": 0, "spare": 0}), "b opens the next round"
    assert not rule.abandoned({"b": 1, "spare": 1}), "and this is it"
    assert not rule.abandoned({"b": 0, "other": 0})
    assert not rule.abandoned({"b": 0, "other": 1}), "the rank of b is not back yet"
    assert not rule.abandoned({"b": 0, "another": 0}), "b opens the next round again"
    assert rule.abandoned({"another": 0, "fourth": 0})
    rule.began()
    assert not rule.abandoned({"other": 0, "another": 0}), "they have not trained in this generation"


def test_a_slow_machine_gets_twice_the_time_each_time_until_it_has_started_a_rank() -> None:
    rule, waits, now = RejoinRule(60), [], 0.0
    for _ in range(7):
        vain = first_vain(rule, enough=True, ranks=0, since=now)
        assert vain is not None
        waits.append(vain - now)
        rule.made_anew()
        rule.began()
        now = vain + 1
    assert waits == [60, 120, 240, 480, 960, 960, 960], "and no longer than 16 times"
    assert not rule.in_vain(now, True, 1)
    assert first_vain(rule, enough=True, ranks=0, since=now + 1) == now + 1 + 60


@given(
    st.lists(st.tuples(st.floats(0.1, 40), st.integers(0, 6), st.integers(0, 4)), max_size=120),
    st.sampled_from([(4, 2, 24), (4, 2, 16), (3, 1, 12), (2, 1, 8)]),
)
def test_whatever_happens_sizes_are_legal_and_changes_are_apart(
    happenings: list[tuple[float, int, int]], shape: tuple[int, int, int]
) -> None:
    """No change wants a size that is not one, needs nodes that are not there, or comes sooner after the last than it
    may; a smaller one never comes while a rank trains, a larger one never while one does not."""
    made = config(*shape)
    rule, now, nodes, last = SizeRule(made), 0.0, made.cluster.nodes, 0.0
    for pause, present, ranks in happenings:
        now += pause
        training = min(ranks, nodes)
        wanted = rule.wanted(now, nodes, present, training)
        if wanted is None:
            continue
        assert wanted in made.sizes and wanted <= present and wanted != nodes
        assert training == (0 if wanted < nodes else nodes)
        assert now - last >= (SHRINK_S if wanted < nodes else GROW_S)
        rule.changed(nodes, wanted)
        nodes, last = wanted, now
