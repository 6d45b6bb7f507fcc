"""Failures of a preparation: those that may pass end with 1 and are tried again, the others with 2 and one message."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from holdfast.config import ConfigError
from tests.trainer.prepared_data import ROOT, corpus, made, run
from trainer.data.prepare import conduct, plan, room
from trainer.data.prepare.__main__ import main
from trainer.data.prepare.failures import WorkFailed
from trainer.data.prepare.inputs import InputFile
from trainer.data.prepare.pieces import Piece
from trainer.data.prepare.plan import Request
from trainer.data.prepared import PLAN
from trainer.data.tokenizer import Bytes

NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """main() takes SIGTERM for its own process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_hub_that_cannot_be_reached_is_no_bad_input(tmp_path: Path) -> None:
    done = run("me/corpus", "--to", tmp_path / "out", environment=NO_HUB | {"HF_HOME": str(tmp_path / "hf")})
    assert done.returncode == 1, done.stderr
    said = "data prepare: source = 'me/corpus': it is not on this machine, and the Hugging Face hub cannot be reached."
    assert done.stderr.startswith(said) and "Traceback" not in done.stderr
    assert done.stderr.endswith("Run it again: pieces that are done are kept.\n")


def answered(status: int) -> Exception:
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)
    kind = errors.GatedRepoError if status == 403 else errors.HfHubHTTPError
    return kind(f"HTTP {status}", response=response)


@pytest.mark.parametrize(
    "cause, code",
    [
        (errors.LocalEntryNotFoundError("cannot find the file, and no connection"), 1),
        (answered(503), 1),
        (answered(429), 1),
        (answered(403), 2),
        (None, 2),
    ],
)
def test_a_tokenizer_that_the_hub_does_not_give_now_is_no_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: Exception | None,
    code: int,
) -> None:
    """Raised as transformers does; huggingface_hub asks for most of a minute before it gives up."""

    def from_pretrained(name: str) -> None:
        raise OSError(f"We could not load {name}") from cause

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    source = corpus(tmp_path / "in")
    assert main([str(source), "--to", str(tmp_path / "out"), "--tokenizer", "me/model"]) == code
    assert "--tokenizer = 'me/model'" in capsys.readouterr().err


def test_a_hub_that_one_has_forbidden_oneself_stays_bad_input(tmp_path: Path) -> None:
    environment = NO_HUB | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = run("me/corpus", "--to", tmp_path / "out", environment=environment)
    assert done.returncode == 2, done.stderr
    assert "the Hugging Face hub cannot be reached" in done.stderr


@pytest.mark.parametrize("status, kind", [(403, ConfigError), (503, WorkFailed)])
def test_files_that_are_gated_though_their_list_is_not_are_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[Exception]
) -> None:
    """huggingface_hub's refusals are OSErrors too."""

    def read(*_: object) -> None:
        raise answered(status)

    monkeypatch.setattr(room, "estimate", read)
    piece = Piece(InputFile("a.jsonl", 1, "", "jsonl", "me/corpus@0"), 0, 1, 1)
    with pytest.raises(kind, match="source = 'me/corpus': "):
        conduct._check_room([piece], Request("me/corpus", tmp_path, "bytes"), Bytes())


WITHOUT_TOKENIZER = """
import multiprocessing, sys
from holdfast.config import ConfigError, Problem
from trainer.data import tokenizer
from trainer.data.prepare.__main__ import main
load = tokenizer.load
def load_in_parent(*arguments):
    if multiprocessing.parent_process() is None:
        return load(*arguments)
    raise ConfigError([Problem("data.tokenizer", "words", "planted", "mend it")], "data") from CAUSE
tokenizer.load = load_in_parent  # in every worker: each imports this file
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("cause, code", [("ConnectionError('reset')", 1), ("ValueError('damaged')", 2)])
def test_a_worker_without_a_tokenizer_says_so_and_is_not_taken_for_a_killed_one(
    tmp_path: Path, cause: str, code: int
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WITHOUT_TOKENIZER.replace("CAUSE", cause))
    argv = [sys.executable, str(script), str(corpus(tmp_path / "in")), "--to", str(tmp_path / "out"), "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert "--tokenizer = 'words': planted. Mend it." in done.stderr
    assert "killed" not in done.stderr and "Traceback" not in done.stderr


def test_a_second_preparation_into_one_folder_waits_its_turn_and_the_first_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = corpus(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with conduct._alone(tmp_path / "out"):
        assert main([str(source), "--to", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"another preparation is writing to it (process {os.getpid()} on " in said
    assert "Wait until it is done, or stop it. Run it again" in said
    assert made(source, tmp_path / "out")["pieces"] == 3


def fail(monkeypatch: pytest.MonkeyPatch, step: str, number: int, out: Path) -> None:
    """Let the disk refuse one step of writing into `out`."""
    open_file, make_folder = Path.open, Path.mkdir

    def opened(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == out / ".lock":
            raise OSError(number, os.strerror(number), str(path))
        return open_file(path, *arguments, **named)

    def folder(path: Path, *arguments: Any, **named: Any) -> None:
        if path == out:
            raise OSError(number, os.strerror(number), str(path))
        make_folder(path, *arguments, **named)

    def written(path: Path, _: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    if step == "folder":
        monkeypatch.setattr(Path, "mkdir", folder)
    elif step == "lock":
        monkeypatch.setattr(Path, "open", opened)
    else:
        monkeypatch.setattr(plan, "write_atomically", written)


@pytest.mark.parametrize("step", ["folder", "lock", "plan"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_in_which_one_may_not_write_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    source, out = corpus(tmp_path / "in"), tmp_path / "out"
    fail(monkeypatch, step, number, out)
    said = "it cannot be made" if step == "folder" else "one may not write in it"
    with pytest.raises(ConfigError, match=rf"--to = .*out': {said} \({os.strerror(number)}"):
        made(source, out)


@pytest.mark.parametrize("step", ["folder", "lock", "plan"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_disk_that_fails_is_a_failure_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    source, out = corpus(tmp_path / "in"), tmp_path / "out"
    fail(monkeypatch, step, number, out)
    with pytest.raises(WorkFailed, match=os.strerror(number)):
        made(source, out)


def test_input_that_one_may_not_read_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    from trainer.data.prepare.failures import writing_failure

    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "in" / "a.jsonl"))
    assert isinstance(writing_failure(error, tmp_path / "out"), WorkFailed)


def test_a_folder_that_was_begun_before_revisions_were_kept_is_gone_on_with(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    made(source, tmp_path / "out")
    older = json.loads((tmp_path / "out" / PLAN).read_text())
    del older["revision"]
    (tmp_path / "out" / PLAN).write_text(json.dumps(older))
    assert made(source, tmp_path / "out")["kept"] == 3
