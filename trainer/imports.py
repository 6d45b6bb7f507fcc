"""Imports that cost seconds, made as cheap as they can be made: every restart pays them again, in every rank.

Measured on 2 CPU cores, torch 2.13, transformers 5.24, files cached: torch, FSDP2, optimizer and Llama take 3.0 s as
they come. 0.65 s of it is the garbage collector walking the objects that imports create, which are never garbage; 0.3 s
is `transformers.models` reading the source of all models (2600 files, 45 MB; longer where the files are not cached).
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MODELS = "transformers.models"

_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
}
FAMILIES = tuple(_CLASSES)
"""Families (schema.Model.family) that are imported alone; all others come through transformers' Auto classes."""

_OF_EVERY_RANK = (
    "trainer.train",
    "trainer.model",
    "trainer.weights_load",
    "trainer.optimizer",
    "trainer.urgent",
    "trainer.data",
    "trainer.evaluation",
    "trainer.stragglers.exchange",
    "trainer.stragglers.own_time",
    "trainer.checkpoint.checkpoints",
    "trainer.checkpoint.near",
    "trainer.checkpoint.writer",
    "trainer.restart.failures",
    "trainer.restart.in_process",
    "trainer.restart.who",
    "trainer.gpu_memory",
    "trainer.preflight",
    "trainer.metrics.rank",
    "trainer.metrics.serve",
    "trainer.versions",
    "encodings.idna",  # the first host name that is looked up
    "multiprocessing.popen_spawn_posix",  # the first writer
    "multiprocessing.queues",
)
"""Also what is imported only when it is needed. tests/e2e/test_standby.py finds what is missing here."""


class UnknownFamily(Exception):
    """transformers has no such model type, or no causal language model of it."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Import without the garbage collector; what was imported is then set aside from all later collections."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


@contextmanager
def _models_index_skipped() -> Iterator[None]:
    """Let one model be imported without running `transformers/models/__init__.py`, which indexes all of them.

    The package stands in sys.modules unexecuted meanwhile. It is taken out again, so whoever asks for it later gets the
    real one; the modules imported below it stay and are the same objects.
    """
    importlib.import_module("transformers")
    spec = None if _MODELS in sys.modules else importlib.util.find_spec(_MODELS)
    if spec is None:
        yield
        return
    bare = importlib.util.module_from_spec(spec)
    sys.modules[_MODELS] = bare
    try:
        yield
    finally:
        if sys.modules.get(_MODELS) is bare:
            del sys.modules[_MODELS]


def model_classes(family: str) -> tuple[Any, Any]:
    """Config class and causal language model class of one family (schema.Model.family), and no other family."""
    config_name, model_name = _CLASSES[family]
    configuration, modeling = f"{_MODELS}.{family}.configuration_{family}", f"{_MODELS}.{family}.modeling_{family}"
    if configuration not in sys.modules or modeling not in sys.modules:
        # Only where there is something to import: freezing in the middle of an attempt would keep its cyclic garbage,
        # and with it its process group, for the life of the process.
        with collector_paused(), _models_index_skipped():
            importlib.import_module(configuration)
            importlib.import_module(modeling)
    return getattr(sys.modules[configuration], config_name), getattr(sys.modules[modeling], model_name)


def any_configuration(settings: dict[str, Any]) -> Any:
    """transformers' config object for what a config.json says, of any family that is part of transformers. Raises
    UnknownFamily, and whatever a family makes of values that do not fit."""
    mapping = _auto("configuration_auto").CONFIG_MAPPING
    if settings["model_type"] not in mapping:
        raise UnknownFamily(settings["model_type"])
    return mapping[settings["model_type"]].from_dict(settings)


def any_causal_lm(configuration: Any) -> Any:
    """The causal language model of a config object, in float32. No code but that of transformers is run. Raises
    UnknownFamily where the family has no such model."""
    import torch

    auto = _auto("modeling_auto")
    if type(configuration) not in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnknownFamily(configuration.model_type)
    return auto.AutoModelForCausalLM.from_config(configuration, trust_remote_code=False, dtype=torch.float32)


def _auto(name: str) -> Any:
    module = f"{_MODELS}.auto.{name}"
    if module in sys.modules:
        return sys.modules[module]
    with collector_paused():
        return importlib.import_module(module)


def import_training_stack(family: str) -> None:
    """Import all that a step needs, in one go: torch, FSDP2, the model family, and what the first optimizer pulls in.

    Of family `other` the Auto classes only: config.json says later which family it is.

    torch.optim imports torch._dynamo when the first optimizer is made (0.3 s, compiled or not); doing it here puts it
    where the time is accounted as import and can overlap with waiting for peers.
    """
    with collector_paused():
        for name in ("torch", "torch.distributed.fsdp", "torch.distributed.device_mesh", "torch._dynamo"):
            importlib.import_module(name)
        if family in _CLASSES:
            model_classes(family)
        else:
            _auto("modeling_auto")


def import_all_of_a_rank(config_file: Path) -> None:
    """Import what a rank of this config ever needs, also what it imports only later (trainer/standby).

    A file that is not a valid config gets no more than what all ranks need: the rank will say what is wrong with it.
    """
    from holdfast.config import ConfigError, load_file
    from trainer.restart import heartbeat

    try:
        config = load_file(config_file)
    except ConfigError:
        return
    with collector_paused():
        for name in _OF_EVERY_RANK:
            importlib.import_module(name)
        from trainer.restart import in_process

        if config.recovery.in_job:
            heartbeat.preload()
        if config.recovery.in_process:
            in_process.preload()
    import_training_stack(config.model.family)
