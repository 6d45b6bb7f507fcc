"""The structure of a model: names and shapes, from the config's own keys and from what a config.json adds to them.

What our keys say is compared with the folder's config.json, and a difference is refused: sizes, limits and the plan
follow from our keys. Everything else config.json decides. `python -m trainer.architecture FOLDER` prints the keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import EXIT_BAD_CONFIG, ConfigError, Problem, RunConfig, sizing
from holdfast.config.model import KEYS, OTHER
from holdfast.config.schema import Model
from trainer.imports import FAMILIES, UnknownFamily, any_causal_lm, any_configuration, model_classes
from trainer.model_folder import read_settings, unusable

if TYPE_CHECKING:
    from torch import nn

ATTENTION = "holdfast_causal_sdpa"
"""torch's scaled-dot-product attention, causal by itself. With its plain name "sdpa", transformers 5 looks in every
forward pass whether a mask is needed, which reads one value back from the GPU: the host then waits behind a staging
copy of many gigabytes (measured: 0.30 s per save, the whole copy), and at any other time for the GPU to run dry."""
_MASKED_ATTENTION = "sdpa"
"""Where a causal mask is not enough: a sliding window shorter than the samples."""
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Training on a token stream needs none of them. The defaults of some families lie outside small vocabularies, and the
embedding of a padding token gets no gradient, which would be wrong where the same token also ends documents."""


def on_meta(model: Model, sequence_length: int | None = None) -> nn.Module:
    """The model's structure: no memory for its weights. The only place where one is made, since transformers refuses an
    attention that has not been registered in this process.

    sequence_length: of training; None: as long as the model allows. Raises ConfigError where config.json and the
    config do not agree, or transformers cannot build what config.json describes.
    """
    built = _built(model, sequence_length)
    if model.settings is not None:
        _require_count(model, built)
    return built


def _built(model: Model, sequence_length: int | None = None) -> nn.Module:
    import torch

    _register_attention()
    configuration = configuration_of(model, sequence_length)
    make = any_causal_lm if model.family == OTHER else model_classes(model.family)[1]
    with torch.device("meta"):
        if model.settings is None:
            built: nn.Module = make(configuration)
            return built
        try:
            built = make(configuration)
        except UnknownFamily as unknown:
            why = f"transformers {_version()} has no causal language model of model_type={unknown}"
            raise unusable(*_source(model), why, _OF_TRANSFORMERS) from None
        except Exception as error:  # noqa: BLE001  whatever a family does with values that a file has given it
            why = f"transformers cannot build what {_says(model)} describes ({_first_line(error)})"
            raise unusable(*_source(model), why, _BUILD) from None
    return built


def configuration_of(model: Model, sequence_length: int | None = None) -> Any:
    """transformers' config of the model. Raises ConfigError."""
    if model.folder is not None and model.settings is None:
        raise RuntimeError("model.settings is not filled from the folder's config.json (trainer/model_folder.py)")
    if model.family == OTHER:
        found = _read(model, any_configuration)
    elif model.settings is None:
        found = model_classes(model.family)[0](**hugging_face_settings(model))
    else:
        # Written by hand, settings add to our keys; a folder's stand for themselves and are compared with them.
        ours = {} if model.folder is not None else hugging_face_settings(model)
        found = _read(model, lambda settings: model_classes(model.family)[0].from_dict(ours | settings))
    if model.settings is not None:
        _require_agreement(model, found)
        _set_what_stays_ours(model, found)
    if model.family != OTHER:  # another family's attention may be more than causal: transformers chooses its own
        window = getattr(found, "sliding_window", None)
        longest = sequence_length or model.max_positions
        found._attn_implementation = ATTENTION if window is None or window >= longest else _MASKED_ATTENTION
    return found


def hugging_face_settings(model: Model) -> dict[str, Any]:
    """Arguments of the family's transformers config class, from the keys of the section alone."""
    common: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        "attn_implementation": ATTENTION,
        "use_cache": False,
        **dict.fromkeys(SPECIAL_TOKENS),
        **_dropout(model),
    }
    if model.family == "gpt2":
        return common | {
            "n_embd": model.hidden_size,
            "n_inner": model.intermediate_size,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_positions": model.max_positions,
        }
    settings = common | {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
    }
    if model.family == "mistral":
        settings["sliding_window"] = None  # its default would silently cut attention at 4096 tokens
    return settings


def require_window_kept(config: RunConfig, configuration: Any) -> None:
    """Refuse document masks with a sliding window: they would stand in its place. Raises ConfigError."""
    window = getattr(configuration, "sliding_window", None)
    if config.data.document_masks and window is not None and window < config.data.sequence_length:
        why = f"config.json has a sliding window of {window} tokens, which such masks would stand in for"
        fix = f"use false, or data.sequence_length of at most {window}"
        raise ConfigError([Problem("data.document_masks", True, why, fix)], "model")


def _dropout(model: Model) -> dict[str, float]:
    kinds = ("attn_pdrop", "resid_pdrop", "embd_pdrop") if model.family == "gpt2" else ("attention_dropout",)
    return dict.fromkeys(kinds, model.dropout)


def _set_what_stays_ours(model: Model, configuration: Any) -> None:
    ours: dict[str, Any] = {"use_cache": False, **dict.fromkeys(SPECIAL_TOKENS)}
    if model.family != OTHER:
        ours |= _dropout(model)
    for name, value in ours.items():
        setattr(configuration, name, value)


_OF_TRANSFORMERS = "use a model of a family that is part of transformers, with a causal language model"
_BUILD = "correct config.json, or use a model that this version of transformers knows"


def _read(model: Model, make: Any) -> Any:
    """The config object of model.settings."""
    settings = dict(model.settings or {})
    named = settings.setdefault("model_type", model.family)
    key, folder = _source(model)
    if named != model.family and (model.family != OTHER or named in FAMILIES):
        fix = f"write model.family: {named if named in FAMILIES else OTHER}"
        raise unusable("model.family", model.family, f"{_says(model)} says model_type={named!r}", fix)
    try:
        return make(settings)
    except UnknownFamily:
        if "auto_map" in settings:
            why = f"model_type={named!r} needs code that comes with the model (auto_map), which Holdfast never runs"
        else:
            why = f"transformers {_version()} knows no model_type={named!r}"
        raise unusable(key, folder, why, _OF_TRANSFORMERS) from None
    except Exception as error:  # noqa: BLE001  whatever a family does with values that a file has given it
        raise unusable(key, folder, f"transformers refuses {_says(model)} ({_first_line(error)})", _BUILD) from None


def _require_agreement(model: Model, theirs: Any) -> None:
    wrong = [
        Problem(f"model.{key}", getattr(model, key), f"{_says(model)} says {said!r}", f"write {said!r}")
        for key, said in _said(model.family, theirs).items()
        if said != getattr(model, key)
    ]
    if wrong:
        raise ConfigError(wrong, "model")


def _said(family: str, theirs: Any) -> dict[str, Any]:
    """What config.json says about keys of the section, by our names."""
    text = theirs.get_text_config(decoder=True)
    found = {key: getattr(text, name, None) for name, key in KEYS.items()}
    if family == "gpt2":
        found["intermediate_size"] = theirs.n_inner or 4 * theirs.n_embd
        found["kv_heads"] = theirs.n_head
    elif family != OTHER:
        found["rope_theta"] = (theirs.rope_parameters or {}).get("rope_theta")
    # Some families have no such number, or another one in each block.
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def _require_count(model: Model, built: nn.Module) -> None:
    """The number that sizes were computed from is the real one."""
    real, assumed = sum(parameter.numel() for parameter in built.parameters()), sizing.parameters(model)
    if real != assumed:
        why = f"{_source(model)[1]} describes a model of {real} parameters" + (
            "" if model.parameters is not None else f", and the formula of model.family={model.family} gives {assumed}"
        )
        raise unusable("model.parameters", str(model.parameters), why, f"write {real}")


def _register_attention() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)  # no mask function of that name: no mask is made


def _source(model: Model) -> tuple[str, str]:
    return model.folder or ("model.settings", "model.settings")


def _says(model: Model) -> str:
    return "model.settings" if model.folder is None else f"config.json of {model.folder[1]}"


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def keys_of(folder: Path) -> dict[str, Any]:
    """What belongs into section `model` for the model of a folder. Raises ConfigError."""
    settings = read_settings(folder, "FOLDER", RunConfig(name="model"))
    named = settings["model_type"]
    family: Any = named if named in FAMILIES else OTHER
    unchecked = Model(family=family, weights=str(folder), settings=settings)
    theirs = _read(unchecked, any_configuration)
    said = _said(family, theirs)
    said.setdefault("kv_heads", said.get("heads", 1))
    said.setdefault("intermediate_size", 4 * said.get("hidden_size", 8))
    section = unchecked.model_copy(update=said)
    real = sum(parameter.numel() for parameter in _built(section).parameters())
    if family == OTHER or real != sizing.parameters(section):
        said["parameters"] = real
    return {"family": family, "weights": str(folder), **said}


def main(argv: Sequence[str]) -> int:
    """Print the keys for a folder."""
    if len(argv) != 1:
        print("usage: python -m trainer.architecture FOLDER", file=sys.stderr)
        return EXIT_BAD_CONFIG
    try:
        keys = keys_of(Path(argv[0]).absolute())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    print("model:", *(f"  {key}: {json.dumps(value)}" for key, value in keys.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
