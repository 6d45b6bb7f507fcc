"""`holdfast data prepare` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.trainer.prepared_data import corpus


def test_a_user_prepares_text_and_is_told_how_to_train_on_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = corpus(tmp_path / "in"), tmp_path / "out"
    assert main(["data", "prepare", str(source), "--to", str(out), "--workers", "2"]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    first, *rest = said.out.splitlines()
    assert "tokens of 180 documents" in first and "fingerprint" in first
    assert rest == [
        "1 other files were left out",
        f"train on it with data.path: [{out}] and data.tokenizer: bytes",
    ]
    assert main(["data", "prepare", str(source), "--to", str(out)]) == 0
    assert "3 of 3 pieces were there already" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["absent.jsonl"], "source = 'absent.jsonl': absent.jsonl does not exist. Correct the path"),
        (["in", "--text-key", "body"], "and not 'body'. Name the key of the text with --text-key."),
        (["in", "--revision", "v1"], "--revision = 'v1': in is a path, and only a data set on the hub has revisions"),
        (["in", "--tokenizer", "in"], "--tokenizer = 'in': it cannot be loaded ("),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    corpus(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "prepare", *arguments, "--to", "out"]) == 2
    answer = capfd.readouterr()
    assert said in answer.err and "Traceback" not in answer.err
    assert answer.out == ""


def standing_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> list[str]:
    """Run these lines of shell instead of the preparation; the command line."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("holdfast.commands.data_prepare.sys.executable", str(program))
    return ["data", "prepare", "in", "--to", str(folder / "out")]


@pytest.mark.parametrize("first", ["", """echo '{"total": 5, "done": 0}'; """])
@pytest.mark.parametrize("name, cause", [("KILL", "want of memory: use fewer --workers. "), ("SEGV", "SIGSEGV. ")])
def test_a_preparation_that_was_killed_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    first: str,
    name: str,
    cause: str,
) -> None:
    assert main(standing_in(tmp_path, monkeypatch, f"{first}kill -{name} $$")) == 1
    answer = capfd.readouterr()
    assert answer.err.startswith(f"data prepare: its process was killed by SIG{name}")
    assert f"{cause}Run it again: pieces that are done are kept." in answer.err
    assert answer.out == "" and "Traceback" not in answer.err


def test_what_a_library_prints_between_the_records_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    result = {"tokens": 7, "documents": 1, "bytes": 15, "fingerprint": "f", "kept": 0, "pieces": 1, "left_out": 0}
    noise = "echo a warning; echo 5; echo '[1]'; echo"
    records = [
        'echo \'{"total": 5, "done": 0}\'',
        "echo '{\"advance\": 5}'",
        f"echo '{json.dumps({'result': result})}'",
    ]
    script = "; ".join([noise, *(f"{record}; {noise}" for record in records)])
    assert main(standing_in(tmp_path, monkeypatch, script)) == 0
    answer = capfd.readouterr()
    assert "7 tokens of 1 documents" in answer.out and answer.err == ""


@pytest.mark.parametrize("workers", ["0", "-1", "two", "2000"])
def test_a_number_of_processes_that_is_none_is_a_bad_option(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", "prepare", "in", "--to", "out", f"--workers={workers}"])
    assert ended.value.code == 2
    assert "is not a number from 1 to 1024" in capsys.readouterr().err
