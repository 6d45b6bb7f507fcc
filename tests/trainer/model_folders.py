"""Hugging Face folders of tiny models, as `save_pretrained` writes them, and configs that train from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from holdfast.config import RunConfig, load_profile
from holdfast.run_directory import RunDirectory
from trainer.architecture import keys_of
from trainer.model_folder import settled

WIDTH: dict[str, Any] = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
WIDTH |= {"num_attention_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.3}
NO_TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
LLAMA_3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA_3_ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 20000.0}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        WIDTH | NO_TOKENS | {"num_key_value_heads": 2, "rms_norm_eps": 1e-3, "rope_parameters": LLAMA_3_ROPE},
    ),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 256, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "layer_norm_epsilon": 1e-3}
        | {"activation_function": "relu", "initializer_range": 0.3}
        | NO_TOKENS,
    ),
    "qwen2": (
        "Qwen2Config",
        WIDTH | NO_TOKENS | {"num_key_value_heads": 2, "rms_norm_eps": 1e-2, "rope_parameters": PLAIN_ROPE},
    ),
    # A head size that is not hidden_size / heads, and a window that is shorter than the samples.
    "mistral": (
        "MistralConfig",
        WIDTH | NO_TOKENS | {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": 16, "hidden_act": "gelu"},
    ),
    # Norms that count from zero, two kinds of soft caps, windows in every second block.
    "gemma2": (
        "Gemma2Config",
        WIDTH
        | NO_TOKENS
        | {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}
        | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "olmo2": ("Olmo2Config", WIDTH | NO_TOKENS | {"num_key_value_heads": 4}),
    "phi": ("PhiConfig", WIDTH | NO_TOKENS),
    "gpt_neo": (
        "GPTNeoConfig",
        {"vocab_size": 256, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 16, "initializer_range": 0.3}
        | NO_TOKENS,
    ),
}
"""By model_type: class and arguments of the transformers config."""
OTHERS = ("gemma2", "olmo2", "phi", "gpt_neo")


def config_of(kind: str, **changes: Any) -> Any:
    """The transformers config of a kind."""
    name, arguments = CONFIGS[kind]
    return getattr(transformers, name)(**(arguments | changes))


def model_of(kind: str, noise: float = 0.05, **changes: Any) -> Any:
    """The model as transformers draws it, with noise, so that no weight of a norm is one."""
    torch.manual_seed(11)
    causal_lm: Any = transformers.AutoModelForCausalLM
    model = causal_lm.from_config(config_of(kind, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return model


def folder_of(
    kind: str, folder: Path, *, dtype: torch.dtype = torch.float32, shard: str = "5GB", **changes: Any
) -> Path:
    """A folder with the model of a kind. GPT-2's weights are saved as on the hub, without prefix."""
    model = model_of(kind, **changes).to(dtype)
    (model.transformer if kind == "gpt2" else model).save_pretrained(folder, max_shard_size=shard)
    return folder


def config_folder_of(kind: str, folder: Path, **changes: Any) -> Path:
    """A folder with nothing but the config.json of a kind."""
    config_of(kind, **changes).save_pretrained(folder)
    return folder


def sets_of(folder: Path, *more: str) -> list[str]:
    """Overrides that make cpu-test train from a folder: what `python -m trainer.architecture` prints."""
    keys = {"dropout": 0, **keys_of(folder)}
    return [*(f"model.{key}={json.dumps(value).strip(chr(34))}" for key, value in keys.items()), *more]


def trained_from(folder: Path, *more: str) -> RunConfig:
    """The config of a run that trains from a folder."""
    return settled(load_profile("cpu-test", sets_of(folder, *more)), Path("/"), RunDirectory(folder / "run"))


def random_from(folder: Path, *more: str) -> RunConfig:
    """The config of a run that takes the folder's config.json only."""
    changed = [one.replace("model.weights=", "model.config=") for one in sets_of(folder, *more)]
    return settled(load_profile("cpu-test", changed), Path("/"), RunDirectory(folder / "run"))


def reference_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """What transformers' own from_pretrained makes of a folder, in float32."""
    causal_lm: Any = transformers.AutoModelForCausalLM
    loaded = causal_lm.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = loaded(input_ids=tokens, use_cache=False).logits
    return logits
