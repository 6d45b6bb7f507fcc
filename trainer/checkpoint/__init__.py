"""Checkpoints: stage -> persist -> commit, and restore, prune. One file per stage; `Checkpoints` is what the loop sees.

The state machine of one save: staged (copied to shared host memory) -> persisting (the writer process writes this
rank's files and then its acknowledgement) -> committed (rank 0 saw all acknowledgements and renamed the marker into
place), or failed (counted; training goes on). One save is in flight at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.checkpoint.checkpoints import Checkpoints

__all__ = ["Checkpoints"]


def __getattr__(name: str) -> Any:
    """Import `Checkpoints`, and torch with it, when it is asked for: not all of this package needs torch."""
    if name != "Checkpoints":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer.checkpoint.checkpoints import Checkpoints

    return Checkpoints
