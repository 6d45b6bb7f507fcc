"""Where documents begin within packed samples."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.conftest import configured
from tests.trainer.prepared_data import made
from tests.trainer.test_data import numbered_text, small
from trainer.data import Dataset, open_dataset
from trainer.data.documents import attention_mask, cumulative_lengths, positions_of
from trainer.data.tokens import Stream, TokenFile
from trainer.model import build, loss_of

TEXTS = ["abcde", "fg", "h", "ijklmnopqrstuvwxyz", "0123456789"]


@pytest.fixture(params=["text", "prepared"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    """36 tokens of 5 documents, samples of 8: tokenized on first use, and prepared."""
    (tmp_path / "in").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    source = "in"
    if request.param == "prepared":
        made(tmp_path / "in", tmp_path / "out")
        source = "out"
    return open_dataset(small(source, 4, "data.document_masks=true"), tmp_path, tmp_path / "cache")


def test_positions_begin_again_with_every_document_and_every_sample(dataset: Dataset) -> None:
    begins = np.cumsum([len(text) for text in TEXTS])
    for step in (1, 2, 3):
        for rank, sample in enumerate(dataset.sample_ids(step).tolist()):
            positions = dataset.positions(step, rank, 4)
            assert positions is not None and positions.dtype == torch.int64
            place, expected = 0, []
            for token in range(sample * 8, sample * 8 + 8):
                place = 0 if token in begins or token == sample * 8 else place + 1
                expected.append(place)
            assert positions.tolist() == [expected]


def test_without_masks_there_are_no_positions(tmp_path: Path) -> None:
    dataset = open_dataset(small(numbered_text(tmp_path / "text", 40)), tmp_path, tmp_path / "cache")
    assert dataset.positions(1, 0, 4) is None


def test_held_out_samples_have_positions_too(dataset: Dataset, tmp_path: Path) -> None:
    numbered_text(tmp_path / "text", 40)
    config = small("text", 4, "data.document_masks=true", "data.validation_path=[in]", "training.evaluation_samples=4")
    found = open_dataset(config, tmp_path, tmp_path / "cache")
    rows = {
        bytes(tokens[0, :8].tolist()).decode(): positions[0].tolist()
        for rank in range(4)
        for tokens, positions in found.validation_batches(rank, 4)
        if positions is not None
    }
    assert rows["abcdefgh"] == [0, 1, 2, 3, 4, 0, 1, 0]
    assert rows["ijklmnop"] == list(range(8))


@pytest.mark.parametrize("mapped", [True, False])
def test_looking_for_ends_converts_none_of_the_others(tmp_path: Path, mapped: bool) -> None:
    ends = np.arange(1, 1_000_001, dtype=np.uint64)
    ends.tofile(tmp_path / "a.ends")
    np.zeros(1_000_000, np.uint8).tofile(tmp_path / "a.tokens")
    file = TokenFile(tmp_path / "a.tokens", 1_000_000, tmp_path / "a.ends" if mapped else ends)
    stream = Stream([file], "uint8")
    stream.ends(0, 4)  # maps the file
    tracemalloc.start()
    try:
        assert stream.ends(500_000, 500_004).tolist() == [500_001, 500_002, 500_003]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000, f"{most} bytes for three of a million ends"


@pytest.mark.parametrize(
    "begins, expected", [([], [0, 1, 2, 3]), ([1, 2, 3], [0, 0, 0, 0]), ([3], [0, 1, 2, 0]), ([2, 2], [0, 1, 0, 1])]
)
def test_positions_of_places(begins: list[int], expected: list[int]) -> None:
    assert positions_of(4, np.asarray(begins, np.int64)).tolist() == expected


def test_cumulative_lengths_are_the_edges_of_documents_over_all_samples() -> None:
    positions = torch.tensor([[0, 1, 2, 0], [0, 1, 0, 0]])
    edges, longest = cumulative_lengths(positions)
    assert (edges.tolist(), edges.dtype, longest) == ([0, 3, 4, 6, 7, 8], torch.int32, 3)


def test_a_mask_lets_a_token_look_at_its_own_document_up_to_itself() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])
    mask = attention_mask(positions)
    assert mask.shape == (2, 1, 5, 5)
    for sample in range(2):
        for row in range(5):
            begin = row - int(positions[sample, row])
            assert mask[sample, 0, row].nonzero().flatten().tolist() == list(range(begin, row + 1))


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "mistral"])
def test_packed_documents_have_the_losses_that_they_have_alone(family: str) -> None:
    config = configured(f"model.family={family}", "model.kv_heads=4", "model.dropout=0")
    model = build(config, torch.device("cpu")).eval()
    tokens = torch.randint(0, 256, (1, 21), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[*range(7), *range(13)]])
    with torch.no_grad():
        alone = [loss_of(model, tokens[:, :8]) * 7, loss_of(model, tokens[:, 7:]) * 13]
        assert loss_of(model, tokens, positions).item() * 20 == pytest.approx(float(sum(alone)), rel=1e-6)
        assert abs(loss_of(model, tokens).item() * 20 - float(sum(alone))) > 1e-3, "without positions they leak"
