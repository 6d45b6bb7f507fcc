"""The imagined run reads like a real one, and the page says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import ledger, ledger_page
from bench.imagined_run import FAULTS, SAVE_EVERY, Imagined, write_run
from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run


def test_an_imagined_run_has_its_steps_its_faults_and_nothing_odd(tmp_path: Path) -> None:
    run = Imagined(ranks=16, steps=4000)
    write_run(tmp_path, run)
    assert len(list((tmp_path / "events").glob("*.parquet"))) >= FAULTS
    assert len(list((tmp_path / "events").glob("rank-*.jsonl"))) == 16
    found = account(read_run(tmp_path))
    assert (found.ranks, found.steps, len(found.attempts)) == (16, 4000, FAULTS + 1)
    assert [recovery.lost_steps for recovery in found.recoveries] == [SAVE_EVERY // 2] * FAULTS
    assert found.anomalies == ()
    assert sum(found.buckets.values()) == pytest.approx(found.wall_s, abs=1e-9)
    assert found.buckets["lost_work"] == pytest.approx(FAULTS * SAVE_EVERY / 2 * 0.5, rel=0.01)


def test_the_page_says_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(ledger_page, "KEPT", kept)
    assert "Not measured yet" in ledger_page.headline(tmp_path)
    write_run(tmp_path / "run", Imagined(ranks=8, steps=1000))
    measured = {
        **ledger.files(tmp_path / "run"),
        **ledger.read(tmp_path / "run"),
        **ledger.event_cost(tmp_path / "cost"),
        **ledger.compaction_cost(tmp_path / "compaction"),
    }
    about = {"ranks": 8, "steps": 1000, "hardware": {"cores": 2}, "load_before": 0.5, "commit": "abc"}
    kept.write_text(json.dumps(measured | about))
    said = ledger_page.headline(tmp_path)
    assert f"8 ranks and 1,000 steps ({measured['events']:,} events" in said
    assert f"{measured['peak_rss_mib']:,} MiB of memory, on 2 cores" in said
