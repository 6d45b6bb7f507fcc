"""The closed form of peak GPU memory against torch's own memory tracker, which follows every tensor of our trainer's
passes: model, FSDP2 units, checkpointing and loss are the real ones, on fake tensors of real sizes.

Fake tensors are a CPU's here. What differs on a GPU: attention with dropout, which CPUs compute with whole matrices
(these cases have none), and workspaces. Left out are clipping and the optimizer's update: kernels that work in place,
but which fake tensors take apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.memory_spec import LLAMA_8B
from holdfast.config import RunConfig, load_profile
from holdfast.config.gpu_memory import peak
from trainer import initial
from trainer.checkpoint.state import prepare_optimizer
from trainer.model import build, loss_of
from trainer.optimizer import build_optimizer
from trainer.parallel import reduce_at

SMALL = (
    "model.hidden_size=1024",
    "model.intermediate_size=3584",
    "model.heads=8",
    "model.kv_heads=2",
    "model.layers=4",
    "model.max_positions=8192",
)
LLAMA_8B_BLOCKS = (*LLAMA_8B, "model.layers=3")
GPT2 = (
    "model.family=gpt2",
    "model.hidden_size=768",
    "model.intermediate_size=3072",
    "model.heads=12",
    "model.kv_heads=12",
    "model.layers=4",
    "model.max_positions=1024",
    "model.tie_embeddings=true",
    "data.sequence_length=1024",
)
MANY_TOKENS = ("model.vocab_size=2048", "data.sequence_length=2048")
LARGE_VOCABULARY = ("model.vocab_size=32768", "data.sequence_length=1024")
FEW_TOKENS = ("model.vocab_size=512", "data.sequence_length=128")
IN_PIECES = "training.loss_chunk_tokens=512"
MASKS = "data.document_masks=true"
FLOAT32 = "model.dtype=float32"
LAST = "training.reduce_gradients=last_pass"
SETTINGS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "llama": ((*SMALL, *MANY_TOKENS), 1, 1),
    "llama accumulating": ((*SMALL, *MANY_TOKENS), 2, 2),
    "llama accumulating, reduced last": ((*SMALL, *MANY_TOKENS, LAST), 2, 2),
    "gpt2 accumulating, reduced last": ((*GPT2, "model.vocab_size=50257", LAST), 1, 3),
    "llama with masks": ((*SMALL, *MANY_TOKENS, MASKS), 1, 1),
    "llama in float32": ((*SMALL, *MANY_TOKENS, FLOAT32), 1, 1),
    "llama with whole logits": ((*SMALL, *LARGE_VOCABULARY), 1, 1),
    "llama with its loss in pieces": ((*SMALL, *LARGE_VOCABULARY, IN_PIECES), 2, 2),
    "llama with few tokens": ((*SMALL, *FEW_TOKENS), 1, 1),
    "mistral": ((*SMALL, *MANY_TOKENS, "model.family=mistral"), 1, 1),
    "qwen2": ((*SMALL, *MANY_TOKENS, "model.family=qwen2"), 2, 1),
    "three blocks of 8B": ((*LLAMA_8B_BLOCKS, "training.loss_chunk_tokens=2048"), 1, 1),
    "three blocks of 8B with whole logits, accumulating": (LLAMA_8B_BLOCKS, 1, 2),
    "gpt2": ((*GPT2, "model.vocab_size=50257"), 2, 1),
    "gpt2 with a small vocabulary, accumulating": ((*GPT2, "model.vocab_size=512"), 2, 2),
}
"""Overrides, samples per pass, passes per step."""
SLOW = pytest.mark.slow
AGAIN = ("mistral", "qwen2", "llama in float32", "gpt2 with a small vocabulary, accumulating")
"""Settings whose parts other settings have too; each takes a few seconds."""
RANKS = 2
CLOSE = 0.016
LESS_CLOSE = {"llama in float32": 0.03}
"""Parts of the tracked peak. Most settings are within 0.2 %; at 1.6 % each kind of saved tensor is missed by some."""


@pytest.fixture(autouse=True)
def one_of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group whose other rank need not be there. Buffers keep no values on fake tensors."""
    monkeypatch.setattr(initial, "restore_buffers", lambda *_, **__: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def settings(sets: tuple[str, ...], policy: str, samples: int, passes: int) -> RunConfig:
    batch = (f"training.micro_batch_size={samples}", f"training.global_batch_size={samples * passes * RANKS}")
    shared = (f"cluster.nodes={RANKS}", "model.dropout=0", "model.dtype=bfloat16")
    return load_profile("cpu-test", [*shared, *sets, *batch, f"training.activation_checkpointing={policy}"])


def tracked_bytes(config: RunConfig) -> int:
    """Most bytes of tensors that are alive at once in a step that has moments to begin with."""
    mesh = init_device_mesh("cpu", (RANKS,))
    with FakeTensorMode():
        model = build(config, torch.device("cpu"), mesh, initialize=False)
        optimizer = build_optimizer(model, config)
        length = config.data.sequence_length
        tokens = torch.zeros(config.training.micro_batch_size, length + 1, dtype=torch.int64)
        positions = torch.zeros_like(tokens[:, :-1]) if config.data.document_masks else None

        def gradients(micro: int) -> None:
            reduce_at(model, config, micro, config.accumulation_at(RANKS))
            torch.autograd.backward(loss_of(model, tokens, positions))

        prepare_optimizer(model, optimizer)
        # The tracker follows one pass only. One before it lets FSDP set itself up, and leaves its gradients if a step
        # accumulates: those of further passes are added to them.
        gradients(0)
        if config.accumulation_at(RANKS) == 1:
            optimizer.zero_grad(set_to_none=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *_unreduced(model))
        with tracker:
            gradients(config.accumulation_at(RANKS) - 1)
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def _unreduced(model: nn.Module) -> list[torch.Tensor]:
    """Gradients of earlier passes that wait for the reduction: FSDP keeps them where the tracker does not look."""
    groups = [
        module._get_fsdp_state()._fsdp_param_group for module in model.modules() if isinstance(module, FSDPModule)
    ]
    kept = [parameter.unsharded_accumulated_grad for group in groups if group for parameter in group.fsdp_params]
    return [gradient for gradient in kept if gradient is not None]


@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in AGAIN else ()) for name in SETTINGS])
def test_the_predicted_peak_is_that_of_the_trainers_own_tensors(name: str, policy: str) -> None:
    sets, samples, passes = SETTINGS[name]
    config = settings(sets, policy, samples, passes)
    found = peak(config)
    assert found is not None
    assert found.bytes == pytest.approx(tracked_bytes(config), rel=LESS_CLOSE.get(name, CLOSE)), str(found)
