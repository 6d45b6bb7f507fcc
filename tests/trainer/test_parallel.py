"""Which modules become FSDP units."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.trainer.conftest import configured
from trainer.model import build, loss_of

TABLES = {"model.embed_tokens", "lm_head"}


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("tied", "tables"), [("false", TABLES), ("true", set())])
def test_untied_tables_are_units_of_their_own_and_one_for_both_is_not(tied: str, tables: set[str]) -> None:
    config = configured(f"model.tie_embeddings={tied}", "model.layers=2")
    model = build(config, torch.device("cpu"), init_device_mesh("cpu", (1,)))
    units = {name for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    assert units == {"", "model.layers.0", "model.layers.1"} | tables
    if tables:
        loss = loss_of(model, torch.zeros(1, config.data.sequence_length + 1, dtype=torch.int64))
        assert model.lm_head._get_fsdp_state()._fsdp_param_group.is_unsharded  # type: ignore[union-attr, operator]
        assert model.model.embed_tokens._get_fsdp_state()._fsdp_param_group.is_sharded  # type: ignore[union-attr, operator]
        torch.autograd.backward(loss)
        assert model.lm_head._get_fsdp_state()._fsdp_param_group.is_sharded  # type: ignore[union-attr, operator]
