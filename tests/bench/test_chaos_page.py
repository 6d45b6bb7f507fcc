"""What documents say of `make chaos` is what its kept results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kills_page

SUM = {
    "schedules": 200,
    "complete": 199,
    "failed": [17],
    "kinds": {"hang": 120, "node_loss": 80},
    "ends": {"complete": 184, "terminal 93": 15, "hang": 1},
    "compared": 184,
    "wrong_weights": 0,
    "restarts": 250,
    "longest_s": 61.4,
    "commit": "abc",
}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page looks for the result."""
    path = tmp_path / "chaos.json"
    monkeypatch.setattr(kills_page, "SCHEDULES", path)
    return path


def test_nothing_is_claimed_before_it_was_tried(kept: Path) -> None:
    assert "Not tried yet" in kills_page.schedules_headline(kept.parent)


def test_a_seed_that_failed_is_named(kept: Path) -> None:
    kept.write_text(json.dumps(SUM))
    text = kills_page.schedules_headline(kept.parent)
    assert "under random schedules of 200 faults (hang 120, node_loss 80)" in text
    assert "199 kept every promise, and 1 did not (seeds 17)." in text
    assert "184 of 184" in text and "15 ended for good" in text and "(chaos.json)" in text
    assert "on record; 1 had not ended when its time was over." in text


def test_nothing_is_said_of_failures_where_there_are_none(kept: Path) -> None:
    kept.write_text(json.dumps({**SUM, "complete": 200, "failed": [], "ends": {"complete": 185, "terminal 93": 15}}))
    text = kills_page.schedules_headline(kept.parent)
    assert "200 kept every promise. " in text and "had not ended" not in text
