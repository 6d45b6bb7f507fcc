"""Memory for arithmetic: what backward computes again changes neither loss nor gradients, and frees what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.config import ConfigError
from tests.trainer.conftest import configured
from tests.trainer.counting import Count
from tests.trainer.gloo import run_ranks, whole
from trainer import blocks
from trainer.model import build, loss_of

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
FAMILIES = ("llama", "qwen2", "mistral", "gpt2")
CHUNK = "training.loss_chunk_tokens=48"
"""Does not divide the 2 x 64 tokens of a batch."""


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (2, 65), generator=torch.Generator().manual_seed(5))


def result(*overrides: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of a batch, and the gradient of each parameter by name."""
    model = build(configured("model.dropout=0", "model.kv_heads=4", *overrides), CPU)
    loss = loss_of(model, tokens())
    torch.autograd.backward(loss)
    return float(loss.detach()), {
        name: value.grad for name, value in model.named_parameters() if value.grad is not None
    }


class Kept:
    """Bytes that autograd keeps for backward."""

    def __init__(self) -> None:
        self.bytes = 0
        self._seen: set[int] = set()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in self._seen:
            self._seen.add(tensor.data_ptr())
            self.bytes += tensor.nbytes
        return tensor


def kept_bytes(*overrides: str) -> int:
    model = build(configured("model.dropout=0", "model.kv_heads=4", *overrides), CPU)
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        loss_of(model, tokens())
    return kept.bytes


def operations(how: str) -> Counter[str]:
    model = build(configured("model.dropout=0", f"training.activation_checkpointing={how}"), CPU)
    with Count() as count:
        torch.autograd.backward(loss_of(model, tokens()))
    counted: Counter[str] = count.by_name
    return counted


class Largest(TorchDispatchMode):
    """Most rows of a tensor whose last dimension is the vocabulary's."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._vocabulary = vocabulary
        self.rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.ndim > 1 and made.shape[-1] == self._vocabulary:
            self.rows = max(self.rows, made.numel() // self._vocabulary)
        return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", ["selective", "full"])
def test_what_is_computed_again_gives_the_same_loss_and_gradients_by_the_same_names(family: str, how: str) -> None:
    expected_loss, expected = result(f"model.family={family}")
    loss, gradients = result(f"model.family={family}", f"training.activation_checkpointing={how}")
    assert loss == expected_loss
    assert gradients.keys() == expected.keys()
    assert all(gradients[name].equal(expected[name]) for name in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loss_in_chunks_is_the_same_up_to_rounding(family: str) -> None:
    expected_loss, expected = result(f"model.family={family}")
    loss, gradients = result(f"model.family={family}", CHUNK)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_full_checkpointing_keeps_much_less_for_backward() -> None:
    assert kept_bytes("training.activation_checkpointing=full") < 0.6 * kept_bytes()


def test_selective_checkpointing_computes_no_matrix_product_again_but_what_lies_between() -> None:
    counted = {how: operations(how) for how in ("none", "selective", "full")}
    products = {how: counts["mm"] + counts["addmm"] + counts["bmm"] for how, counts in counted.items()}
    assert products["selective"] == products["none"] < products["full"]
    assert counted["selective"]["silu"] == counted["full"]["silu"] == 2 * counted["none"]["silu"]


@pytest.mark.parametrize(("overrides", "rows"), [((), 128), (("training.loss_chunk_tokens=80",), 80)])
def test_logits_are_never_whole_in_memory_when_the_loss_is_in_chunks(overrides: tuple[str, ...], rows: int) -> None:
    model = build(configured("model.vocab_size=331", "model.dropout=0", *overrides), CPU)
    with Largest(331) as largest:
        torch.autograd.backward(loss_of(model, tokens()))
    assert largest.rows == rows


def test_what_is_computed_again_draws_the_same_dropout() -> None:
    def gradients(how: str) -> dict[str, torch.Tensor]:
        model = build(
            configured(
                "model.family=gpt2", "model.kv_heads=4", "model.dropout=0.3", f"training.activation_checkpointing={how}"
            ),
            CPU,
        )
        torch.manual_seed(3)
        torch.autograd.backward(loss_of(model, tokens()))
        return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}

    expected, again = gradients("none"), gradients("full")
    assert all(again[name].equal(expected[name]) for name in expected)


def _sharded(rank: int, world_size: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    model = build(
        configured("model.dropout=0", "model.kv_heads=4", *overrides), CPU, init_device_mesh("cpu", (world_size,))
    )
    loss = loss_of(model, tokens().chunk(world_size)[rank])
    torch.autograd.backward(loss)
    gradients = {name: whole(value.grad) for name, value in model.named_parameters() if value.grad is not None}
    return {"loss": float(loss.detach()), "gradients": gradients}


def test_shards_give_the_gradients_of_one_whole_model_with_all_of_it_on() -> None:
    overrides = (
        "training.activation_checkpointing=selective",
        "training.loss_chunk_tokens=24",
        "model.tie_embeddings=true",
    )
    _, expected = result("model.tie_embeddings=true")
    for found in run_ranks(_sharded, 2, overrides):
        assert found["gradients"].keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-4, atol=1e-7)


COMPILED = """
import json, sys
import torch
from tests.trainer.test_blocks import result
from torch._dynamo.utils import counters
plain, expected = result()
loss, gradients = result("training.compile=true", "training.activation_checkpointing=full")
apart = max(float((gradients[name] - expected[name]).abs().max()) for name in expected)
found = counters["inductor"]
print(json.dumps([plain, loss, apart, found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]]))
"""


@pytest.mark.timeout(240)
def test_compiled_blocks_give_the_same_numbers_and_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    import json

    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    seen = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", COMPILED],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    for plain, loss, apart, _, _ in seen:
        assert loss == pytest.approx(plain, rel=1e-5)
        assert apart < 1e-5
    assert seen[0][4] > 0, "the first process has compiled"
    assert seen[1][4] == 0 and seen[1][3] > 0, "the second one has found all of it"


def test_compiled_code_outlives_the_rank_in_the_scratch_of_its_pod(tmp_path: Path) -> None:
    from trainer.pod.pod import _compiler_cache

    kept = _compiler_cache(configured("training.compile=true"), tmp_path)
    assert {Path(folder).parts[: len(tmp_path.parts)] for folder in kept.values()} == {tmp_path.parts}
    assert set(kept) == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    assert _compiler_cache(configured(), tmp_path) == {}


def test_no_compiler_is_known_before_the_first_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match=r"training\.compile = True: .* a C compiler \(gcc or clang\) on PATH"):
        blocks.prepare([], configured("training.compile=true").training)
    (tmp_path / "gcc").touch(0o755)
    blocks.prepare([], configured("training.compile=true").training)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(ConfigError, match=r"Python\.h"):
        blocks.prepare([], configured("training.compile=true").training)
