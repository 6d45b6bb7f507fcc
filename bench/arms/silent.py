"""What a bare training step is given where a run has its event log, saves, faults and clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Silent:
    """Stands where the trainer has its event log, saves, faults, clocks and check of losses, and does nothing."""

    @contextmanager
    def span(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {}

    @contextmanager
    def apart(self) -> Iterator[None]:
        yield

    def strike(self, *_: Any) -> None: ...

    def lasted(self, *_: Any, **__: Any) -> None: ...

    def between(self) -> None: ...

    def before_update(self) -> None: ...

    def on_loss(self, _step: int, loss: Any) -> Any:
        return loss

    def ceiling(self, *_: Any) -> float:
        return math.inf

    def accepts(self, *_: Any) -> bool:
        return True
