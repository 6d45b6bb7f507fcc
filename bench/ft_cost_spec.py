"""What driver and ranks of bench.ft_cost agree on. Plain data: no torch."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

ON, OFF = "on", "off"
SIDES = (ON, OFF)
STALL_S = 180.0
"""Nobody waits longer for the other side's turn: the first one includes its start, imports and model."""
SEED = 20261130


@dataclass(frozen=True)
class Spec:
    """One start of both sides. run: names it in the raw file. store: host:port of the store through which turns go."""

    run: str
    raw: str
    store: str
    config: str
    """File with the config of the side that is on."""
    run_dir: str
    storage: str
    world: int
    steps: int
    """Steps of a turn that count."""
    settle: int
    """Steps of a turn before them. The GPU has worked for the other side until then."""

    def to_json(self) -> str:
        """For the command line of a rank."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The other way round."""
        return cls(**json.loads(text))


def side_of(turn: int) -> str:
    """Whose turn it is. Turns come in pairs, and a coin says who begins: a machine that drifts favours nobody."""
    pair, second = divmod(turn, 2)
    first = random.Random(SEED + pair).randrange(2)
    return SIDES[first ^ second]


def next_turn(side: str, after: int) -> int:
    """The side's first turn after `after`."""
    turn = after + 1
    while side_of(turn) != side:
        turn += 1
    return turn
