"""The bench of predicted and measured GPU memory: what is missing, what is made of it, and what documents say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import document, json_lines, memory_page
from bench.memory import main, measure, parse
from bench.memory_results import CODE, missing, result
from bench.memory_spec import CPU_SETTINGS, RANKS, SETTINGS, Order
from bench.rank_processes import Ended
from holdfast.config import gpu_memory
from holdfast.config.sizing import GIB

H200_GIB = 139
MASKS = {"setting": "masks", "cuda": False, "world": RANKS, "commit": "abc", "gpu": "", "torch": "", "ranks": []}
ROOT = Path(__file__).parents[2]


def line(setting: str, allocated_gib: float, commit: str = "abc", **more: Any) -> dict[str, Any]:
    ranks = [
        {
            "allocated": int(part * GIB),
            "reserved": int(1.1 * part * GIB),
            "used": int(1.2 * part * GIB),
            "total": 139 * GIB,
        }
        for part in (allocated_gib, 0.9 * allocated_gib)
    ]
    return {
        "setting": setting,
        "cuda": True,
        "world": RANKS,
        "commit": commit,
        "gpu": "H200",
        "torch": "2.11",
        "ranks": ranks,
    } | more


def predicted_gib(setting: str) -> float:
    found = gpu_memory.peak(Order(setting, True).config)
    assert found is not None
    return found.gib


def arguments(*words: str) -> Any:
    return parse(["--commit", "abc", *words])


def test_the_settings_fit_and_cover_what_the_formula_distinguishes() -> None:
    configs = {name: Order(name, True).config for name in SETTINGS}
    for name, config in configs.items():
        found = gpu_memory.peak(config)
        assert found is not None and gpu_memory.needed_bytes(found) < H200_GIB * GIB, f"{name}: {found}"
        assert config.world_size == RANKS and config.model.dtype == "bfloat16"
    trainings = [config.training for config in configs.values()]
    assert {t.activation_checkpointing for t in trainings} == {"none", "selective", "full"}
    assert {t.loss_chunk_tokens is None for t in trainings} == {t.compile for t in trainings} == {True, False}
    assert {config.accumulation for config in configs.values()} == {1, 2}
    assert {config.data.document_masks for config in configs.values()} == {True, False}
    assert any(config.model.layers == 32 for config in configs.values())


def test_a_prediction_is_compared_with_the_rank_that_took_most() -> None:
    made = result([line("full", predicted_gib("full") / 1.04)], arguments())
    assert made is not None
    (row,) = made["rows"]
    assert row["error_fraction"] == pytest.approx(0.04) and made["largest_error_fraction"] == pytest.approx(0.04)
    assert row["predicted_gib"] == pytest.approx(sum(row["parts"].values()))
    assert row["measured_reserved_gib"] == pytest.approx(1.1 * row["measured_allocated_gib"])
    assert row["measured_used_gib"] == pytest.approx(1.2 * row["measured_allocated_gib"])
    assert row["overrides"] == SETTINGS["full"].overrides(RANKS) and made["commit"] == "abc"


def test_a_prediction_that_is_too_small_counts_as_much_as_one_that_is_too_large() -> None:
    lines = [line("full", predicted_gib("full") / 0.8), line("none", predicted_gib("none") / 1.1)]
    made = result(lines, arguments())
    assert made is not None and made["largest_error_fraction"] == pytest.approx(0.2)


def test_the_newest_measurement_counts_and_no_later_failure_takes_it_away() -> None:
    failure = {"setting": "none", "cuda": True, "world": RANKS, "commit": "new", "error": "killed"}
    lines = [line("none", 10.0, "old"), line("none", 20.0, "new"), failure]
    made = result(lines, arguments())
    assert made is not None and made["rows"][0]["measured_allocated_gib"] == 20.0 and made["commit"] == "new"
    assert "none" not in missing(lines, arguments())
    assert result([failure], arguments()) is None


def failure(setting: str, error: str, **more: Any) -> dict[str, Any]:
    return {"setting": setting, "cuda": True, "world": RANKS, "commit": "abc", "error": error, **more}


def test_what_was_never_tried_is_measured_before_what_has_failed() -> None:
    first, *others = SETTINGS
    assert missing([failure(first, "killed")], arguments()) == [*others, first]


@pytest.mark.parametrize(
    ("failures", "why"),
    [
        ([failure("none", "killed")] * 2, "given up after 2 failures (another --raw tries it again): killed"),
        ([failure("none", "CUDA error: out of memory")], "does not fit: CUDA error: out of memory"),
    ],
)
def test_what_fails_twice_or_does_not_fit_is_given_up_and_says_so(failures: list[dict[str, Any]], why: str) -> None:
    assert "none" not in missing(failures, arguments())
    made = result([*failures, line("full", 10.0)], arguments())
    assert made is not None and made["rows"][0]["error"] == why


def test_what_the_deadline_has_cut_off_is_not_given_up() -> None:
    cut = [failure("none", "the limit of 40 s passed", cut=True)] * 3
    assert missing(cut, arguments())[-1] == "none"


@pytest.mark.parametrize(("limit_s", "cut"), [(40.0, True), (300.0, False)])
def test_a_limit_below_a_settings_own_is_a_cut(monkeypatch: pytest.MonkeyPatch, limit_s: float, cut: bool) -> None:
    ended = Ended(False, "the limit passed", late=True)
    monkeypatch.setattr("bench.memory.run_ranks", lambda *_, **__: (ended, ""))
    assert measure(Order("none", False), limit_s) == {"error": "the limit passed", "cut": cut}


def test_a_cpus_lines_are_no_measurements_of_a_gpu() -> None:
    cpu = {
        "setting": "none",
        "cuda": False,
        "world": RANKS,
        "commit": "abc",
        "gpu": "",
        "torch": "2.13",
        "ranks": [{}, {}],
    }
    assert missing([cpu], arguments()) == list(SETTINGS)
    assert missing([cpu], arguments("--cpu")) == [name for name in CPU_SETTINGS if name != "none"]
    made = result([cpu], arguments("--cpu"))
    assert made is not None and made["rows"][0]["error_fraction"] is None and made["largest_error_fraction"] is None


def test_a_further_call_measures_only_what_is_missing_and_adds_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, asked = tmp_path / "raw.jsonl", []

    def fake(order: Order, _: float) -> dict[str, Any]:
        asked.append(order.setting)
        return (
            {"error": "killed"}
            if order.setting == "masks" and len(asked) < 3
            else {"gpu": "", "torch": "", "ranks": []}
        )

    monkeypatch.setattr("bench.memory.measure", fake)
    words = ["memory", "--cpu", "--raw", str(raw), "--out", str(tmp_path / "out.json"), "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1 and asked == ["none", "masks"]
    assert main() == 0 and asked == ["none", "masks", "masks"]
    assert main() == 0 and len(asked) == 3 and len(json_lines.read([raw])) == 3
    given_up = [{"setting": "masks", "cuda": False, "world": RANKS, "commit": "abc", "error": "killed"}] * 2
    raw.write_text("".join(json.dumps(one) + "\n" for one in [json_lines.read([raw])[0], *given_up]))
    assert main() == 1 and len(asked) == 3, "given up, and not measured"
    raw.write_text("".join(json.dumps(one) + "\n" for one in [json_lines.read([raw])[0], MASKS]))
    assert main() == 0 and len(asked) == 3
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["setting"] for row in rows] == list(CPU_SETTINGS) and not any("error" in row for row in rows)


def test_nothing_is_begun_that_the_deadline_would_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.memory.measure", lambda *_: pytest.fail("a setting was begun"))
    monkeypatch.setattr(sys, "argv", ["memory", "--cpu", "--raw", str(tmp_path / "raw"), "--deadline", "20"])
    assert main() == 1


@pytest.mark.parametrize("words", [["--settings", "none,nnoe"], ["--deadline", "soon"]])
def test_wrong_words_are_one_message_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err


def test_documents_show_gpus_only_and_say_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "memory.json"
    monkeypatch.setattr(memory_page, "KEPT", (tmp_path / "none.json", kept))
    assert "Not measured yet" in memory_page.memory(tmp_path, document.table)
    good, bad = predicted_gib("full"), predicted_gib("none")
    failure = {"setting": "8b", "cuda": True, "world": RANKS, "commit": "abc", "error": "out of memory"}
    kept.write_text(json.dumps(result([line("full", good / 1.04), line("none", bad / 1.3), failure], arguments())))
    said = memory_page.memory(tmp_path, document.table)
    assert "Of 2 settings 1 are predicted within 10%" in said and "the largest error is 30.0%" in said
    assert f"| {good:.1f} | {good / 1.04:.1f} | +4.0% |" in said and "Not measured: 8b: out of memory; " in said
    assert f"{memory_page.WHAT['masks']} (not tried)" in said and f"{memory_page.WHAT['none']} (not tried)" not in said


def test_every_setting_has_its_words_in_documents() -> None:
    assert memory_page.WHAT.keys() == SETTINGS.keys()


def test_the_measured_code_is_there() -> None:
    assert [name for name in CODE if not (ROOT / name).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("setting", CPU_SETTINGS)
def test_ranks_make_the_trainers_steps_and_say_so(setting: str) -> None:
    found = measure(Order(setting, False), 150.0)
    assert found.get("ranks") == [{}] * RANKS, found.get("error")


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_ranks_that_fail_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.memory.RANK", "bench.no_such_module")
    assert "no_such_module" in measure(Order("none", False), 60.0)["error"]
