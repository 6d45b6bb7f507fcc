"""A plain FSDP2 script, the way torch's own tutorial writes one: transformers' model with its SDPA attention and its
own loss, fully_shard on each block and on the whole, bfloat16 with float32 reduction, fused AdamW, nothing compiled."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from bench.arms.throughput_arm import Arm, Tokens
from bench.throughput_spec import Spec


class Eager(Arm):
    """The loss is not read back in a step: a script that reads it each time waits for the device."""

    def __init__(self, spec: Spec, rank: int) -> None:
        super().__init__(spec, rank)
        dist.init_process_group("cpu:gloo,cuda:nccl" if spec.cuda else "gloo")
        torch.manual_seed(0)
        mesh = init_device_mesh(self.device.type, (spec.world,))
        self._model: Any = self._sharded(mesh)
        if spec.trial.checkpointing == "full":
            self._model.gradient_checkpointing_enable({"use_reentrant": False})
        self._model.train()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self._tokens = Tokens(spec, rank)
        self._steps = itertools.count(1)

    def _sharded(self, mesh: Any) -> Any:
        shape = self.spec.shape
        make: Any = LlamaConfig
        config = make(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.sequence,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
            attn_implementation="sdpa",
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.device("meta"):
            model: Any = LlamaForCausalLM(config)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.model.layers:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=self.device)
        with torch.no_grad():
            for module in model.modules():
                model._init_weights(module)
        return model

    def step(self) -> torch.Tensor:
        step = next(self._steps)
        total = torch.zeros((), device=self.device)
        for micro in range(self.spec.passes):
            tokens = self._tokens.batch(step, micro)
            tokens = (tokens.pin_memory() if self.spec.cuda else tokens).to(self.device, non_blocking=True)
            # transformers shifts labels itself.
            loss = self._model(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss / self.spec.passes
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def settings(self) -> dict[str, Any]:
        return {
            "reduce": "float32",
            "master": "float32",
            "optimizer": "AdamW, fused",
            "attention": "transformers, sdpa",
        }
