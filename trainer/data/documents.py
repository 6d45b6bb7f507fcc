"""Documents within packed samples, in the forms in which attention wants to know of them.

positions, int64 [samples, sequence_length]: of each input token within its document, 0 at the first token of a document
and at the first token of a sample. Everything else follows from it: transformers and flash attention take it as
position_ids, variable-length kernels take cumulative lengths, and a mask compares document numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


def positions_of(length: int, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Position of each of `length` tokens within its document. begins: places (1 .. length - 1, ascending) at which a
    document begins."""
    starts = np.zeros(length, dtype=np.int64)
    starts[begins] = begins
    return np.arange(length, dtype=np.int64) - np.maximum.accumulate(starts)


def cumulative_lengths(positions: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(edges, longest) for variable-length attention over all samples laid end to end.

    edges: int32 [documents + 1], from 0 to the number of tokens; no document spans two samples. longest: tokens of the
    longest document; reading it waits for the device, so call this on the CPU.
    """
    import torch

    flat = positions.flatten()
    begins = torch.nonzero(flat == 0).flatten()
    edges = torch.cat([begins, begins.new_tensor([len(flat)])]).to(torch.int32)
    return edges, int(edges.diff().max())


def attention_mask(positions: torch.Tensor) -> torch.Tensor:
    """True where a token may look: at tokens of its own document, up to itself. bool [samples, 1, length, length]."""
    import torch

    numbers = (positions == 0).cumsum(dim=1)
    same = numbers[:, :, None] == numbers[:, None, :]
    length = positions.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=positions.device).tril()
    return (same & causal)[:, None]
