"""With how many nodes the job may go on, and when launchers begin anew in the same pods. Part of `recovery`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from holdfast.config.problems import Problem
from holdfast.config.section import Seconds, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig


class Elasticity(Section):
    """New generations in the same pods: another size, which is off by default (a job that is short of nodes waits for
    them), or the same one."""

    rejoin_timeout_s: Seconds = 180
    """All nodes are there, and none has had a rank for so long: their launchers begin anew, since those of NVRx 0.6 can
    wait for one another for ever. Above the time that a launcher takes to start and to meet the others; doubles if it
    was not enough. Where all that trained are seen to have vanished, nothing is waited for."""

    min_nodes: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """With at least so many nodes the job goes on when no spare and no new node comes. The global batch stays the same;
    each rank makes more passes and holds a larger shard, which must fit its memory. Sizes over which the batch cannot
    be spread are left out. Null: cluster.nodes, never fewer."""
    shrink_after_s: Seconds = 600
    """So long the job waits for a missing node before it goes on with fewer. Longer than a node usually takes to come,
    since a change of size costs a restart, and every step is slower after it."""
    grow_after_s: Seconds = 120
    """A node that has come back must have been there for so long before the job grows: several nodes that come one
    after the other are one change of size, not many. Doubles, up to 16 times, whenever a growth is undone."""


def divides(c: RunConfig, nodes: int) -> bool:
    """Whether the global batch can be spread evenly over so many nodes."""
    return c.training.global_batch_size % (nodes * c.cluster.ranks_per_node * c.training.micro_batch_size) == 0


def elastic_problems(c: RunConfig) -> Iterator[Problem]:
    """What does not fit together."""
    r, nodes = c.recovery, c.cluster.nodes
    least = r.min_nodes
    if least is None:
        return
    key = "recovery.min_nodes"
    if least > nodes:
        yield Problem(key, least, f"the job has cluster.nodes={nodes}", f"use at most {nodes}, or null")
    if least >= nodes:
        return
    if not r.in_job:
        why = "another size is another rendezvous of ft_launcher, and recovery.in_job is off"
        yield Problem(key, least, why, "use recovery.in_job: true, or null")
    if c.checkpoint.mode == "off":
        why = "checkpoint.mode=off leaves nothing to go on from with another number of nodes"
        yield Problem(key, least, why, "save checkpoints, or use null")
    yield from _batch_problem(c, least)
    yield from _time_problems(c)


def _batch_problem(c: RunConfig, least: int) -> Iterator[Problem]:
    if divides(c, least):
        return
    ranks, micro, batch = c.cluster.ranks_per_node, c.training.micro_batch_size, c.training.global_batch_size
    per_node = f"cluster.ranks_per_node={ranks} x training.micro_batch_size={micro}"
    why = f"{least} nodes x {per_node} = {least * ranks * micro} must divide training.global_batch_size={batch}"
    sizes = [size for size in range(1, c.cluster.nodes + 1) if divides(c, size)]
    fix = f"use one of the sizes that work: {', '.join(map(str, sizes))}" if sizes else "mend the batch first"
    yield Problem("recovery.min_nodes", least, why, fix)


def _time_problems(c: RunConfig) -> Iterator[Problem]:
    r = c.recovery
    if r.shrink_after_s >= r.join_timeout_s:
        why = f"recovery.join_timeout_s={r.join_timeout_s} must exceed it, or the rendezvous gives up first"
        yield Problem("recovery.shrink_after_s", r.shrink_after_s, why, f"use less than {r.join_timeout_s}")
    for key, value in (("shrink_after_s", r.shrink_after_s), ("grow_after_s", r.grow_after_s)):
        if value < r.owner_lease_s:
            why = f"who is there is known only after recovery.owner_lease_s={r.owner_lease_s:g}"
            yield Problem(f"recovery.{key}", value, why, f"use at least {r.owner_lease_s:g}")
