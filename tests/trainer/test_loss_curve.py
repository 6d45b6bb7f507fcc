"""The curve of losses is that of a plain loop over whole batches, on any number of ranks, in any number of passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.arms.silent import Silent
from holdfast.config import RunConfig
from tests.trainer.conftest import configured
from tests.trainer.gloo import run_ranks, whole

STEPS, WARMUP, BATCH, CLIP, PEAK, LEAST, DECAY = 12, 4, 8, 1.9, 3e-3, 3e-4, 0.2
EACH, LAST = "each_pass", "last_pass"
SPREADS = [(1, 8, EACH), (1, 2, LAST), (2, 4, EACH), (2, 1, EACH), (2, 1, LAST), (4, 2, EACH), (4, 1, EACH)]
"""(ranks, samples per pass, when gradients are reduced): in one pass and in several."""


def config_of(micro: int, reduced: str = EACH) -> RunConfig:
    """Clipping has something to do at the first steps and nothing at the last."""
    return configured(
        f"training.steps={STEPS}", f"training.warmup_steps={WARMUP}", f"training.global_batch_size={BATCH}",
        f"training.micro_batch_size={micro}", f"training.clip_norm={CLIP}", f"training.learning_rate={PEAK}",
        f"training.min_learning_rate_ratio={LEAST / PEAK}", f"training.weight_decay={DECAY}", "training.beta2=0.9",
        f"training.reduce_gradients={reduced}", "model.dropout=0", "data.limit_mib=0.05", "cluster.nodes=1",
    )  # fmt: skip


def trained(rank: int, world: int, folder: str, micro: int, reduced: str) -> tuple[list[float], dict[str, Any]]:
    """(mean loss over all ranks of each step, weights at the end), by the trainer's own step. Collective."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from trainer import optimizer as optimizers
    from trainer import train
    from trainer.data import open_dataset
    from trainer.model import build
    from trainer.runtime import Identity

    config, silent, cpu = config_of(micro, reduced), cast(Any, Silent()), torch.device("cpu")
    model = build(config, cpu, init_device_mesh("cpu", (world,)))
    optimizer = optimizers.build_optimizer(model, config)
    dataset = open_dataset(config, Path(folder), Path(folder) / "cache")
    identity = Identity(rank, world, rank, 0, 0, "", "", "")
    survivors = train.Survivors(config, identity, silent, Path(folder), silent, silent, silent, silent)
    parts = train.Parts(model, optimizer, dataset, silent, silent, silent, cpu, silent)
    losses = []
    for step in range(1, STEPS + 1):
        mean = torch.tensor(train.train_step(step, survivors, parts))
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    return losses, {name: whole(value).numpy() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, torch.Tensor], list[float]]:
    """(losses, weights, norms before clipping) of what one writes without this project: transformers' model from the
    same weights, whole batches, torch's AdamW and schedulers, its own clipping."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer.data import open_dataset
    from trainer.model import build

    config, folder = config_of(BATCH), tmp_path_factory.mktemp("plain")
    sizes = config.model
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size, intermediate_size=sizes.intermediate_size,
            num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
            tie_word_embeddings=sizes.tie_embeddings,
        )
    )  # fmt: skip
    model.load_state_dict(build(config, torch.device("cpu")).state_dict())
    decayed, others = [p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(config.training.beta1, 0.9), foreach=False, fused=False)
    schedulers: list[Any] = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP, 1.0, WARMUP - 1),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP, LEAST),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, [WARMUP - 1])
    dataset = open_dataset(config, folder, folder / "cache")
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        tokens = dataset.batch(step, 0, 1)
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, dict(model.state_dict()), norms


@pytest.mark.parametrize(("world", "micro", "reduced"), SPREADS)
def test_losses_and_weights_are_those_of_a_plain_loop_over_whole_batches(
    plain: tuple[list[float], dict[str, torch.Tensor], list[float]],
    tmp_path: Path,
    world: int,
    micro: int,
    reduced: str,
) -> None:
    losses, weights, norms = plain
    assert max(norms) > 1.2 * CLIP and min(norms) < CLIP / 1.05, "some steps are clipped and some are not"
    assert losses[-1] < losses[0] - 0.2, "it learns"
    for ours, values in run_ranks(trained, world, str(tmp_path), micro, reduced, timeout_s=150):
        assert ours == pytest.approx(losses, rel=2e-5)
        assert values.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(torch.from_numpy(values[name]), value, rtol=2e-3, atol=2e-5, msg=name)
