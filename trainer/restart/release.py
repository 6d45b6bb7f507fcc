"""Let go of a dead attempt, so that its memory is free and, on gloo, its peers notice.

Gloo cannot abort a collective: a rank that waits in one notices a failed peer only when the peer's sockets close, and
they close when the last reference to its process group goes. Measured on two ranks: the peer notices after 0.13 s,
instead of the collective's time-out of 4 s.
"""

from __future__ import annotations

import gc
import traceback


def release(error: BaseException, gloo: bool) -> None:
    """Drop what the frames of a failed attempt hold: model, optimizer, checkpoints; on gloo the group as well."""
    traceback.clear_frames(error.__traceback__)
    if gloo:
        _forget_groups()
    gc.collect()


def _forget_groups() -> None:
    """Torch caches sharding decisions per tensor shape for the life of the process, each with its DeviceMesh, and a
    mesh holds its process groups (torch 2.13). The mesh is dead; its groups need not be.
    """
    from torch.distributed.device_mesh import DeviceMesh

    for found in gc.get_objects():
        if isinstance(found, DeviceMesh):
            registry = getattr(found, "_pg_registry", None)  # torch 2.11 looks groups up by name and holds none
            if registry is not None:
                registry.clear()
