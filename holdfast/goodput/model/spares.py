"""How many spare nodes: the nodes that are out at a time are binomial. Tails by the incomplete beta function."""

from __future__ import annotations

MOST_SPARES = 1_000_000


def unavailability(failures_per_node_day: float, repair_days: float) -> float:
    """Share of time in which a node is out, 0 to 1: it works for 1 / rate, then is away for repair_days."""
    if not min(failures_per_node_day, repair_days) >= 0:
        raise ValueError("rate and repair time must be at least 0")
    away = failures_per_node_day * repair_days
    return away / (1 + away)


def shortage(nodes: int, spares: int, unavailable: float) -> float:
    """Probability that more than `spares` of nodes + spares are out at once, each with probability `unavailable`.

    Right to about 13 digits however small it is: it is not computed as a difference from 1.
    """
    if nodes < 1 or spares < 0 or not 0 <= unavailable <= 1:
        raise ValueError("nodes must be at least 1, spares at least 0, the probability between 0 and 1")
    from scipy.special import bdtrc

    return float(bdtrc(spares, nodes + spares, unavailable))


def spares_for(nodes: int, unavailable: float, most_shortage: float) -> int:
    """Least number of spares with which a shortage is at most so probable. Raises ValueError if there is none."""
    if not 0 < most_shortage < 1 or not 0 <= unavailable < 1:
        raise ValueError("the limit must lie between 0 and 1, and nodes must be there some of the time")
    too_few, enough = -1, 0
    while shortage(nodes, enough, unavailable) > most_shortage:
        too_few, enough = enough, 2 * enough + 1
        if enough > MOST_SPARES:
            raise ValueError(f"more than {MOST_SPARES:,} spares would be needed")
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if shortage(nodes, middle, unavailable) > most_shortage:
            too_few = middle
        else:
            enough = middle
    return enough
