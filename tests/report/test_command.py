"""`holdfast report DIR [DIR...] -o FILE`, as a person calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.goodput.builder import Run
from tests.report.runs import broken_run, long_run


@pytest.mark.parametrize("option", ["-o", "--output", "--html"])
def test_the_page_is_written_and_its_path_is_the_last_line(
    option: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    page = tmp_path / "report.html"
    page.write_text("an older one")
    assert main(["report", str(tmp_path), option, str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Report: {page}"
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]


def test_several_runs_are_printed_one_after_the_other_and_share_a_page(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    long_run(tmp_path / "other", 20)
    assert main(["report", str(run.path), str(tmp_path / "other"), "-o", str(tmp_path / "x.html")]) == 0
    text = capsys.readouterr().out
    assert text.index("run: goodput") < text.index("other: goodput")
    assert "2 runs side by side" in (tmp_path / "x.html").read_text()


def test_a_page_can_go_into_a_pipe_which_stays_one(run: Run, tmp_path: Path) -> None:
    broken_run(run)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert main(["report", str(tmp_path), "-o", str(pipe), "--json"]) == 0
    reader.join(timeout=30)
    assert read[0].endswith("</html>\n")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("file", "why"), [("no/x.html", "its folder does not exist"), (".", "it is a folder"), ("run/run.yaml/x", "")]
)
def test_a_page_that_cannot_be_written_is_one_message_and_code_2(
    file: str, why: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    assert main(["report", str(tmp_path), "-o", str(tmp_path / file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("no page: 1 problem") and "--output = " in error and why in error
    assert "Traceback" not in error


@pytest.mark.parametrize("make", ["empty", "foreign", "nothing logged"])
def test_one_folder_without_a_run_among_several_is_one_message_code_2_and_no_page(
    make: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    other = tmp_path / "other"
    (other / {"empty": "", "foreign": "photos", "nothing logged": "events"}[make]).mkdir(parents=True)
    assert main(["report", str(run.path), str(other), "-o", str(tmp_path / "x.html")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("DIR = ") == 1 and str(other) in captured.err and "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("form", ["--json", "--breakdown-markdown"])
def test_forms_for_programs_are_of_one_run(
    form: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(run)
    assert main(["report", str(run.path), str(run.path), form]) == 2
    assert "this form is of one run" in capsys.readouterr().err


def test_only_a_page_needs_the_plotting_library() -> None:
    code = "import sys, holdfast.commands.report; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
