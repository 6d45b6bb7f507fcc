"""A whole run on prepared data: mixed, masked, evaluated, through a killed rank; and a token that is seen nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config import names
from tests.e2e.harness import ROOT, RunFiles, Training, compare
from tests.trainer.prepared_data import corpus, made

TOKEN = "hf_plantedTokenThatMustNotBeSeen"
SETS = (
    "data.mixture=[{path: large, weight: 3}, {path: small, weight: 1}]",
    "data.limit_mib=null",
    "data.document_masks=true",
    "data.validation_fraction=0.2",
    "training.evaluate_every_steps=5",
    "training.evaluation_samples=8",
    "data.prepare=[{source: raw, to: large}]",
    "model.dropout=0",
)


def run(out: Path, storage: Path, kill: bool) -> RunFiles:
    sets = [one.replace("path: ", f"path: {storage}/") if one.startswith("data.mixture") else one for one in SETS]
    faults = [{"kind": "rank_sigkill", "rank": 1, "step": 12}] if kill else []
    with Training(out, *sets, faults=faults) as training:
        assert training.wait() == 0, training.output
        assert TOKEN not in training.output
    return RunFiles(out / "run")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_on_a_mixture_ends_with_the_same_weights_through_a_kill_and_shows_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    made(corpus(tmp_path / "raw", 2000), tmp_path / "large")
    made(corpus(tmp_path / "more", 150), tmp_path / "small")
    clean, broken = run(tmp_path / "clean", tmp_path, False), run(tmp_path / "broken", tmp_path, True)
    assert compare(clean.run_dir, broken.run_dir)["identical"] is True
    losses = {}
    for files in (clean, broken):
        evaluated = {event.whole("step") or 0: event.fields["loss"] for event in files.events("eval")}
        assert sorted(evaluated) == [5, 10, 15, 20]
        losses[files] = evaluated
    assert losses[clean] == losses[broken]
    page = tmp_path / "report.html"
    report = [sys.executable, "-m", "holdfast", "report", str(broken.run_dir), "--html", str(page)]
    subprocess.run(report, cwd=ROOT, check=True, timeout=100, capture_output=True)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert page in written and any(path.name == names.RUN_YAML for path in written)
    assert [str(path) for path in written if TOKEN.encode() in path.read_bytes()] == []
