"""The loss on held-out data, at the steps that the config names. Weights, random numbers and sample order stay as they
are: a run that evaluates ends with the same weights as one that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.config import RunConfig, names

if TYPE_CHECKING:
    import torch

    from trainer.data import Dataset
    from trainer.train import Survivors


def is_due(config: RunConfig, step: int) -> bool:
    """Whether the held-out loss is computed after `step`."""
    every = config.training.evaluate_every_steps
    return every is not None and (step % every == 0 or step == config.training.steps)


def after_step(
    step: int,
    survivors: Survivors,
    model: torch.nn.Module,
    dataset: Dataset,
    device: torch.device,
    between: Callable[[], None] = lambda: None,
) -> float | None:
    """If it is due, the mean loss over the held-out samples of all ranks, also logged as the span `eval`. Collective.

    Each pass, with the reading of its samples, has the time limit of a checkpoint section: no limit is learned from it,
    as from a step. between: called before each pass. A run that is resumed from the commit of this very step has no
    loss of it if it had not come so far.
    """
    if not is_due(survivors.config, step):
        return None
    import torch
    import torch.distributed as dist

    from trainer.model import loss_of

    identity = survivors.identity
    total = torch.zeros(2, dtype=torch.float64, device=device)
    with survivors.log.span("eval", step=step) as span:
        model.eval()  # no dropout
        try:
            with torch.no_grad():
                batches = iter(dataset.validation_batches(identity.rank, identity.world_size))
                more = True
                while more:
                    with survivors.pulse.section(names.SECTION_CHECKPOINT):
                        between()
                        if more := (batch := next(batches, None)) is not None:
                            tokens, positions = batch
                            documents = None if positions is None else positions.to(device)
                            total[0] += loss_of(model, tokens.to(device), documents).double()
                            total[1] += 1
                with survivors.pulse.section(names.SECTION_CHECKPOINT):
                    dist.all_reduce(total)
                    loss = float(total[0] / total[1])  # on a GPU the wait for all of it
        finally:
            model.train()
            _let_go(model)
        span["loss"] = loss
    return loss


def _let_go(model: torch.nn.Module) -> None:
    """Back to shards. FSDP keeps what a forward pass has gathered for the backward pass, which does not come here: the
    next step would compute with these values, and an update or a save would miss the shards."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
