"""Section `model`: what is trained, from random values or from a Hugging Face folder (docs/models.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from holdfast.config.problems import Problem
from holdfast.config.section import Real, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig

OTHER = "other"
"""Family of all models that Holdfast has no formula for."""
KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "max_position_embeddings": "max_positions",
    "tie_word_embeddings": "tie_embeddings",
}
"""transformers' name of what a key of the section says. Families with other names map these to them."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Model(Section):
    """A Hugging Face causal language model."""

    family: Literal["llama", "gpt2", "qwen2", "mistral", "other"] = "llama"
    """Hugging Face model_type. `other`: whatever AutoModelForCausalLM builds from the config.json of model.weights or
    model.config."""
    weights: str | None = None
    """Folder with config.json and safetensors files, as pods see it: where training starts. Null: random values."""
    config: str | None = None
    """Folder with a config.json whose weights, if it has any, are not used."""
    settings: dict[str, Any] | None = None
    """What the other keys do not say, under the names of the family's config.json, like rope_parameters. The trainer
    fills it from the folder's config.json and writes it into checkpoints."""
    parameters: Annotated[Whole, Field(ge=1)] | None = None
    """Number of parameters, tied ones counted once. Null: by the formula of the family; `other` has none."""
    hidden_size: Annotated[Whole, Field(ge=8)] = 64
    """Width of the residual stream."""
    intermediate_size: Annotated[Whole, Field(ge=8)] = 128
    """Width of the feed-forward layer."""
    layers: Annotated[Whole, Field(ge=1)] = 2
    """Number of transformer blocks; each is one FSDP unit."""
    heads: Annotated[Whole, Field(ge=1)] = 4
    """Attention heads."""
    kv_heads: Annotated[Whole, Field(ge=1)] = 4
    """Key/value heads (grouped-query attention). GPT-2 has as many as heads."""
    vocab_size: Annotated[Whole, Field(ge=2)] = 256
    """Size of the vocabulary; at least the tokenizer's."""
    max_positions: Annotated[Whole, Field(ge=2)] = 2048
    """Longest sequence the model accepts."""
    rope_theta: Annotated[Real, Field(gt=0)] = 10000.0
    """Base of the rotary position embedding (not for GPT-2 and `other`)."""
    tie_embeddings: bool = False
    """Whether input and output embeddings are one tensor."""
    dropout: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """Dropout probability (attention, and residual where the family has it)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of parameters in forward and backward. Master weights and optimizer state are float32."""

    @property
    def folder(self) -> tuple[str, str] | None:
        """Dotted key and path of the folder that describes the model; None: the keys of this section do."""
        if self.weights is not None:
            return "model.weights", self.weights
        return None if self.config is None else ("model.config", self.config)


def model_problems(c: RunConfig) -> Iterator[Problem]:
    """Problems between fields of the section, and between them and the rest."""
    m, length = c.model, c.data.sequence_length
    yield from _folder(c)
    yield from _count(m)
    yield from _said_twice(m)
    yield from (_of_any_family(c) if m.family == OTHER else _heads(m))
    if length > m.max_positions:
        why = f"the model accepts model.max_positions={m.max_positions} tokens"
        yield Problem("data.sequence_length", length, why, f"use at most {m.max_positions}")
    if c.data.tokenizer == "bytes" and m.vocab_size < 256:
        yield Problem("model.vocab_size", m.vocab_size, "data.tokenizer=bytes has 256 tokens", "use at least 256")


def how_to_get(repository: str, mount_path: str) -> str:
    """What to do for weights that lie on the Hugging Face hub."""
    place = f"{mount_path}/models/{repository.rpartition('/')[2]}"
    return (
        f"run `hf download {repository} --local-dir {place}` where the shared storage is mounted, then write {place}; "
        f"for a gated model, accept its terms at https://huggingface.co/{repository} before and give a token that may "
        "read it in HF_TOKEN, on a cluster by a Kubernetes Secret"
    )


def looks_like_a_repository(name: str) -> bool:
    """Whether this is the name of a model on the hub rather than a path."""
    return _REPOSITORY.fullmatch(name) is not None


def _folder(c: RunConfig) -> Iterator[Problem]:
    m = c.model
    if m.weights is not None and m.config is not None:
        why = f"model.weights={m.weights} has a config.json of its own"
        yield Problem("model.config", m.config, why, "leave one of the two out")
    for key, path in (("model.weights", m.weights), ("model.config", m.config)):
        if path is None:
            continue
        if path.startswith("/"):
            yield from _out_of_reach(c, key, path)
            continue
        if looks_like_a_repository(path):
            why = f"it is the name of a model on the Hugging Face hub, and nothing is downloaded while {c.name} runs"
            yield Problem(key, path, why, how_to_get(path, c.storage.mount_path))
        else:
            fix = f"write where pods see the folder, like {c.storage.mount_path}/models/{path.strip('./') or 'mine'}"
            yield Problem(key, path, "it is no absolute path", fix)


def _out_of_reach(c: RunConfig, key: str, path: str) -> Iterator[Problem]:
    """Pods on rented nodes see the image and the shared storage, and nothing else that holds a model."""
    mount = c.storage.mount_path
    if c.instance.ec2 and (".." in path.split("/") or not path.startswith(f"{mount}/")):
        why = f"pods share nothing with one another but storage.mount_path={mount}"
        yield Problem(key, path, why, f"put the folder there and write a path below {mount}, without `..`")


def _count(m: Model) -> Iterator[Problem]:
    """Sizes, limits and costs follow from the count; the trainer compares it with a folder's model."""
    if m.parameters is None:
        return
    tables = m.vocab_size * m.hidden_size
    if m.family != OTHER and m.folder is None and m.settings is None:
        why = f"the keys of this section say how many parameters a model of model.family={m.family} has"
        yield Problem("model.parameters", m.parameters, why, "leave it out")
    elif m.parameters <= tables:
        why = f"the embeddings of model.vocab_size={m.vocab_size} and model.hidden_size={m.hidden_size} have {tables}"
        yield Problem("model.parameters", m.parameters, why, "write what `python -m trainer.architecture` prints")


def _said_twice(m: Model) -> Iterator[Problem]:
    """Settings that are written by hand and that a key of the section already is."""
    for name in sorted(KEYS.keys() & (m.settings or {}).keys()) if m.folder is None else ():
        assert m.settings is not None
        why = f"model.{KEYS[name]}={getattr(m, KEYS[name])!r} says it"
        yield Problem(f"model.settings.{name}", m.settings[name], why, f"leave it out, and write model.{KEYS[name]}")


def _of_any_family(c: RunConfig) -> Iterator[Problem]:
    """What is not known without the modules themselves, or only for the families that Holdfast knows."""
    m, by = c.model, "model.family=other"
    if m.folder is None:
        why = "model.weights and model.config are null, and only a config.json can describe the model"
        yield Problem("model.family", OTHER, why, "name a folder, or use llama, gpt2, qwen2 or mistral")
    if m.parameters is None:
        fix = "`python -m trainer.architecture FOLDER` prints it, with all that belongs into the section"
        yield Problem("model.parameters", None, f"{by}, for which sizes follow from no formula", fix)
    if m.dropout:
        yield Problem("model.dropout", m.dropout, f"{by} takes it from its config.json", "use 0")
    if c.data.document_masks:
        why = f"{by}, whose attention may be of another kind than such masks are for"
        yield Problem("data.document_masks", True, why, "use false")
    if c.training.loss_chunk_tokens is not None:
        why = f"{by}, which may do more to its logits than its output layer does"
        yield Problem("training.loss_chunk_tokens", c.training.loss_chunk_tokens, why, "use null")


def _heads(m: Model) -> Iterator[Problem]:
    if m.hidden_size % m.heads:
        why = f"model.heads={m.heads} must divide it"
        yield Problem("model.hidden_size", m.hidden_size, why, f"use a multiple of {m.heads}")
    elif m.family != "gpt2" and m.hidden_size // m.heads % 2:
        size = m.hidden_size // m.heads
        why = f"model.heads={m.heads} gives heads of size {size}; model.family={m.family} needs an even one"
        yield Problem("model.hidden_size", m.hidden_size, why, f"use a multiple of {2 * m.heads}")
    if m.family == "gpt2" and m.kv_heads != m.heads:
        why = f"model.family=gpt2 has as many key/value heads as model.heads={m.heads}"
        yield Problem("model.kv_heads", m.kv_heads, why, f"use {m.heads}")
    elif m.heads % m.kv_heads:
        why = f"it must divide model.heads={m.heads}"
        yield Problem("model.kv_heads", m.kv_heads, why, "use a divisor of model.heads")
