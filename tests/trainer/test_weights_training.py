"""Real training on two ranks: it begins with the weights of a folder, and a restart goes on from its checkpoint."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.fault_plans import SETS
from tests.trainer.model_folders import config_folder_of, folder_of, sets_of
from tests.trainer.test_model import CPU
from tests.trainer.test_weights import loaded
from trainer.model_folder import KEPT
from trainer.weights import open_weights

ROOT = Path(__file__).parents[2]
LIMIT_S = 250
SHORT = ["training.steps=6", "checkpoint.interval_steps=2", "checkpoint.mode=sync"]
FROZEN = ["training.learning_rate=1e-30", "training.weight_decay=0", "training.min_learning_rate_ratio=1"]

pytestmark = [
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def fault(step: int) -> str:
    return f"faults=[{{kind: exception, rank: 1, phase: forward, step: {step}}}]"


class Trained:
    """What several runs left behind."""

    def __init__(self, folder: Path, results: dict[str, Any]) -> None:
        self.folder = folder
        self.results = results

    def events(self, run: str, *names: str) -> list[dict[str, Any]]:
        """Of these names, of all ranks, in the order of their start."""
        found: list[dict[str, Any]] = []
        for log in self.folder.glob(f"{run}/run/events/*.jsonl"):
            anchor, *events = map(json.loads, log.read_text().splitlines())
            found += [{**event, "rank": anchor.get("rank")} for event in events]
        return sorted((event for event in found if event["name"] in names), key=lambda event: event["t"])

    def sums(self, run: str) -> dict[str, str]:
        """Checksum of each weight after the last step."""
        weights: dict[str, str] = self.results[run]["weights"]
        assert weights["step"] == "6"
        return {name: one for name, one in weights.items() if name.startswith("model.")}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("gemma2", tmp_path_factory.mktemp("model") / "gemma")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Trained:
    place = tmp_path_factory.mktemp("runs")
    # model.layers is the folder's, so SETS may not say it.
    sets = [*sets_of(model_folder), *(one for one in SETS if not one.startswith("model.")), *SHORT]
    runs = {
        "clean": sets,
        "late": [*sets, fault(4)],
        "early": [*sets, fault(1)],
        "still": [*sets, *FROZEN],
        "random": [one.replace("model.weights=", "model.config=") for one in sets],
        "gone": [one.replace(str(model_folder), str(config_folder_of("gemma2", place / "empty"))) for one in sets],
    }
    (place / "spec.json").write_text(json.dumps(runs))
    command = [sys.executable, "-m", "tests.trainer.fault_ranks", str(place / "spec.json"), str(place)]
    with open(place / "errors.txt", "wb") as errors:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, (place / "errors.txt").read_text()[-4000:]
    return Trained(place, json.loads(done.stdout.splitlines()[-1]))


def test_training_begins_with_the_weights_of_the_folder(trained: Trained, model_folder: Path) -> None:
    """Steps that change nothing leave what was loaded."""
    from tests.trainer.model_folders import trained_from

    expected = {
        f"model.{name}": hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()
        for name, value in loaded(trained_from(model_folder)).state_dict().items()
    }
    assert trained.sums("still") == expected
    assert trained.sums("clean").keys() == expected.keys()
    assert not set(trained.sums("clean").values()) & set(expected.values())
    assert trained.sums("random") != trained.sums("clean")


def test_the_event_log_says_which_folder_was_loaded_how_much_and_how_fast(trained: Trained, model_folder: Path) -> None:
    events = trained.events("clean", "weights")
    weights = open_weights(model_folder)
    assert sorted(event["rank"] for event in events) == [0, 1]
    assert {(event["folder"], event["identity"]) for event in events} == {(str(model_folder), weights.identity)}
    size = sum(4 * torch.Size(stored.shape).numel() for stored in weights.tensors.values())
    assert sum(event["bytes"] for event in events) == size
    assert all(event["gb_per_s"] >= 0 and event["dur"] > 0 for event in events)
    kept = json.loads((trained.folder / "clean" / "run" / KEPT).read_text())
    assert kept["attn_logit_softcapping"] == 3.0


def test_a_restart_restores_the_checkpoint_and_never_reads_the_weights_again(trained: Trained) -> None:
    assert trained.results["late"]["attempts"] == 2
    names = [event["name"] for event in trained.events("late", "weights", "restore") if event["rank"] == 0]
    assert names == ["weights", "restore"]
    assert trained.sums("late") == trained.sums("clean")


def test_a_restart_before_the_first_checkpoint_begins_with_the_weights_again(trained: Trained) -> None:
    assert trained.results["early"]["attempts"] == 2
    names = [event["name"] for event in trained.events("early", "weights", "restore") if event["rank"] == 0]
    assert names == ["weights", "weights"]
    assert trained.sums("early") == trained.sums("clean")


def test_a_folder_without_weights_is_refused_on_all_ranks_alike(trained: Trained) -> None:
    errors = trained.results["gone"]["error"].split("; ")
    assert sum("it holds neither model.safetensors nor" in error for error in errors) == 2
    assert trained.results["gone"]["weights"] == {}


def test_an_export_gives_from_pretrained_the_logits_of_what_was_trained(trained: Trained, tmp_path: Path) -> None:
    from holdfast.config import names
    from tests.trainer.exports import exported, logits_of
    from tests.trainer.model_folders import random_from, reference_logits
    from tests.trainer.test_model import tokens_of
    from trainer.checkpoint.compare import read_whole
    from trainer.model import build

    step = trained.folder / "clean" / "run" / names.CHECKPOINTS / names.step_folder(6)
    exported(step, tmp_path / "hf")
    model = build(random_from(tmp_path / "hf"), CPU).eval()
    state = {name.removeprefix("model."): value for name, value in read_whole(step).items()}
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    with torch.no_grad():
        expected = model(input_ids=tokens_of(1)).logits
    assert logits_of(tmp_path / "hf").equal(expected)
    assert reference_logits(tmp_path / "hf", tokens_of(1)).equal(expected)
