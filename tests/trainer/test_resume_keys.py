"""Which keys make a resumed run another experiment, where the saving version did not have all of them."""

from __future__ import annotations

from typing import Any

from tests.trainer.conftest import configured
from trainer.checkpoint.state import differing_keys


def saved_before_masks(**data: Any) -> dict[str, Any]:
    """What a version without data.document_masks, mixtures and evaluation has saved."""
    config = configured().model_dump(mode="json")
    for section, keys in (("data", ("document_masks", "mixture")), ("training", ("evaluate_every_steps",))):
        for key in keys:
            del config[section][key]
    config["data"] |= data
    return {"config": config, "data_fingerprint": "f"}


def test_a_key_that_the_saving_version_did_not_have_counts_as_its_default() -> None:
    assert differing_keys(saved_before_masks(), configured(), "f") == {}
    masked = differing_keys(saved_before_masks(), configured("data.document_masks=true"), "f")
    assert masked == {"data.document_masks": (False, True)}
    assert list(differing_keys(saved_before_masks(sequence_length=32), configured(), "f")) == ["data.sequence_length"]


def test_what_is_held_out_is_compared_by_the_fingerprint_and_when_to_evaluate_not_at_all() -> None:
    now = configured("data.validation_path=[x]", "training.evaluate_every_steps=3")
    assert differing_keys(saved_before_masks(), now, "f") == {}
    assert list(differing_keys(saved_before_masks(), now, "g")) == ["data.fingerprint"]
