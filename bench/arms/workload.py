"""The training that every arm saves: our model, optimizer and order of a step, on synthetic tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bench.checkpoint_spec import Spec
from holdfast.config import RunConfig, load_profile
from trainer import optimizer as optimizers
from trainer.checkpoint import state
from trainer.model import build, loss_of

FAR = 1_000_000
"""Steps between saves by the config: the bench itself says when a save is due."""
POOL = 4
"""Different batches, made once; where tokens come from is not what is measured."""
PROBE = "model.norm.weight"
"""A small parameter whose saved value and moment are compared with what they were when the save began."""


def settings(spec: Spec, micro_batch: int) -> RunConfig:
    """The config of the run that is benchmarked."""
    shared = [
        f"model.layers={spec.layers}", f"model.hidden_size={spec.hidden}", f"model.heads={spec.heads}",
        f"model.intermediate_size={spec.intermediate}", f"model.kv_heads={spec.kv_heads}",
        f"data.sequence_length={spec.sequence}", f"training.micro_batch_size={micro_batch}",
        f"training.global_batch_size={micro_batch * spec.world}", "training.steps=1000000000",
        f"checkpoint.interval_steps={FAR}", f"checkpoint.writer_threads={spec.threads}", "checkpoint.keep_last=2",
        f"checkpoint.persist_timeout_s={spec.limit_s}", "model.dropout=0",
        f"recovery.checkpoint_section_timeout_s={spec.limit_s + 30}", "recovery.process_group_timeout_s=120",
        # 26,000 tokens per step and rank: what all 13 blocks would keep of them does not fit beside state and gradients
        "training.activation_checkpointing=selective",
    ]  # fmt: skip
    if spec.cuda:
        return load_profile("gpu-local", [f"cluster.ranks_per_node={spec.world}", *shared])
    return load_profile("cpu-test", [f"cluster.nodes={spec.world}", *shared])


class Workload:
    """One rank of the run. `group` is for the bench's own words between ranks; no arm uses it."""

    def __init__(self, spec: Spec, micro_batch: int) -> None:
        self.spec = spec
        self.rank = int(os.environ["RANK"])
        self.world = spec.world
        self.device = torch.device("cuda", self.rank) if spec.cuda else torch.device("cpu")
        if spec.cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if spec.cuda else "gloo")
        self.group = dist.new_group(backend="gloo")
        self.config = settings(spec, micro_batch)
        self.model = build(self.config, self.device, init_device_mesh(self.device.type, (self.world,)))
        self.optimizer = optimizers.build_optimizer(self.model, self.config)
        state.prepare_optimizer(self.model, self.optimizer)
        self._count = 0
        self.use_batch(micro_batch)

    def use_batch(self, samples: int) -> None:
        """Steps have so many samples on each rank from now on."""
        generator = torch.Generator().manual_seed(self.rank)
        vocabulary, length = self.config.model.vocab_size, self.spec.sequence + 1
        self._tokens = [
            torch.randint(vocabulary, (samples, length), generator=generator).to(self.device) for _ in range(POOL)
        ]

    def step(
        self, before_update: Callable[[], None] = lambda: None, between: Callable[[], None] = lambda: None
    ) -> tuple[float, float]:
        """One step in the order of trainer.train.train_step. Returns the seconds of forward and backward on the device
        and those that the host was in `before_update`; the device may still be at the update then. between: called when
        the forward pass has been launched."""
        self._count += 1
        gradients = self._stopwatch()
        optimizers.set_learning_rate(self.optimizer, 1e-4)
        loss = loss_of(self.model, self._tokens[self._count % POOL])
        between()
        torch.autograd.backward(loss)
        clipped = optimizers.clip(self.model, self.config.training.clip_norm, loss.detach())
        took = gradients()
        start = time.perf_counter()
        before_update()
        waited = time.perf_counter() - start
        optimizers.update(self.optimizer, clipped)
        self.optimizer.zero_grad(set_to_none=True)
        clipped.read()
        return took(), waited

    def _stopwatch(self) -> Callable[[], Callable[[], float]]:
        """Start; calling the result stops; calling what that returns, later, gives the seconds: by the device's own
        clock where there is one, for it runs behind the host."""
        if not self.spec.cuda:
            start = time.perf_counter()

            def stop() -> Callable[[], float]:
                took = time.perf_counter() - start
                return lambda: took

            return stop
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()

        def stop_on_device() -> Callable[[], float]:
            ended.record()
            return seconds

        def seconds() -> float:
            ended.synchronize()
            return float(begun.elapsed_time(ended)) / 1000

        return stop_on_device

    def live(self) -> dict[str, torch.Tensor]:
        """Everything that a checkpoint holds, by dotted name."""
        return state.live_tensors(self.model, self.optimizer)

    def shard_bytes(self) -> int:
        """Bytes of this rank's part."""
        return sum(local(tensor).nbytes for tensor in self.live().values())

    def probe(self) -> dict[str, torch.Tensor]:
        """Copies of a few small tensors as they are now."""
        found = {
            name: tensor.detach().clone()
            for name, tensor in self.live().items()
            if name == f"model.{PROBE}" or name.startswith(f"optimizer.state.{PROBE}.")
        }
        assert len(found) == 4, f"{PROBE}, its two moments and its step, not {sorted(found)}"
        return found

    def everyone(self, *flags: bool) -> list[bool]:
        """For each flag: whether it is set on all ranks. Collective."""
        said = torch.tensor([int(flag) for flag in flags])
        dist.all_reduce(said, op=dist.ReduceOp.MIN, group=self.group)
        return [bool(value) for value in said.tolist()]

    def barrier(self) -> None:
        """All ranks are here."""
        dist.barrier(group=self.group)

    def finish_gpu(self) -> None:
        """Wait for the device."""
        if self.spec.cuda:
            torch.cuda.synchronize()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, sharing its memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that all ranks hold parts of, on the CPU. Collective."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
