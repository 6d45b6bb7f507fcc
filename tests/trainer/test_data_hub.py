"""Data sets and tokenizers of the hub: streamed, pinned to a commit, refused in words, and the token never shown."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import ConfigError
from tests.trainer.hub_double import COMMIT, Hub, serving
from tests.trainer.prepared_data import content, documents, lines, made, run
from trainer.data.hub import hub_problem, without_token
from trainer.data.prepare import inputs
from trainer.data.prepared import MANIFEST, PLAN

TOKEN = "hf_plantedTokenThatMustNotBeSeen"


@pytest.fixture
def hub() -> Iterator[Hub]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = io.BytesIO()
    pq.write_table(pa.table({"text": documents(50, "c")}), table)
    files = {
        "train/a.jsonl": lines(documents(50, "a")),
        "train/b.jsonl.gz": gzip.compress(lines(documents(50, "b"))),
        "train/c.parquet": table.getvalue(),
        "README.md": b"# no data",
    }
    with serving(files) as served:
        yield served


def environment(hub: Hub, folder: Path, token: str = TOKEN) -> dict[str, str]:
    found = {"HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return found | ({"HF_TOKEN": token} if token else {"HF_TOKEN": ""})


def nowhere(*places: Path | str) -> bool:
    """Whether the token stands in no text and in no file below these folders."""
    for place in places:
        files = [file for file in place.rglob("*") if file.is_file()] if isinstance(place, Path) else []
        texts = [file.read_bytes() for file in files] if isinstance(place, Path) else [place.encode()]
        if any(TOKEN.encode() in text for text in texts):
            return False
    return True


def test_a_data_set_is_streamed_with_the_token_pinned_to_its_commit_and_equal_to_its_files(
    hub: Hub, tmp_path: Path
) -> None:
    done = run("me/corpus", "--to", tmp_path / "out", "--workers", "2", environment=environment(hub, tmp_path))
    assert done.returncode == 0, done.stderr
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        (tmp_path / "in" / name).write_bytes(hub.files[f"train/{name}"])
    made(tmp_path / "in", tmp_path / "local")
    parts = [name for name in content(tmp_path / "local") if name.startswith("part-")]
    assert len(parts) == 9
    assert all(content(tmp_path / "out")[name] == content(tmp_path / "local")[name] for name in parts)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["commit"] == COMMIT
    downloads = [request for request in hub.seen if "/resolve/" in request[1]]
    assert {authorization for _, _, authorization in downloads} == {f"Bearer {TOKEN}"}
    assert all(COMMIT in path for _, path, _ in downloads)
    assert nowhere(done.stdout, done.stderr, tmp_path)


def test_a_preparation_goes_on_with_the_commit_that_it_began_with(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("me/corpus", "--to", out, environment=environment(hub, tmp_path)).returncode == 0
    before = content(out)
    for name in (MANIFEST, "part-00001.json"):
        (out / name).unlink()
    hub.commit = "b" * 40
    done = run("me/corpus", "--to", out, environment=environment(hub, tmp_path))
    assert done.returncode == 0, done.stderr
    assert content(out) == before
    other = run("me/corpus", "--to", out, "--revision", "b" * 40, environment=environment(hub, tmp_path))
    assert other.returncode == 2
    assert "it holds the preparation of something else: commit, files differ" in other.stderr


def test_a_connection_that_ends_early_is_a_failure_that_the_next_run_cures(hub: Hub, tmp_path: Path) -> None:
    hub.cut_off = 2  # huggingface_hub itself asks once more
    done = run("me/corpus", "--to", tmp_path / "out", environment=environment(hub, tmp_path))
    assert done.returncode == 1
    assert "Run it again: pieces that are done are kept." in done.stderr and "Traceback" not in done.stderr
    assert run("me/corpus", "--to", tmp_path / "out", environment=environment(hub, tmp_path)).returncode == 0


@pytest.mark.parametrize(
    "arguments, token, said",
    [
        (
            ["me/gated"],
            TOKEN,
            "source = 'me/gated': it is gated, and the token in HF_TOKEN may not read it. Accept",
        ),
        (["me/gated"], "", "source = 'me/gated': it is gated, and HF_TOKEN is not set. Accept its terms at https://"),
        (["me/none"], "", "source = 'me/none': the Hugging Face hub has none of this name, or it is private."),
        (["me/corpus", "--files", "*.csv"], "", "--files = '*.csv': no file of me/corpus that holds data matches it."),
        (["me/corpus", "--tokenizer", "me/gated"], TOKEN, "--tokenizer = 'me/gated': it is gated, and the token in"),
        (["me/corpus", "--tokenizer", "me/none"], "", "--tokenizer = 'me/none': the Hugging Face hub has none of this"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_message_without_the_token(
    hub: Hub, tmp_path: Path, arguments: list[str], token: str, said: str
) -> None:
    done = run(*arguments, "--to", tmp_path / "out", environment=environment(hub, tmp_path, token))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("  - ")]) == 1
    assert not (tmp_path / "out" / PLAN).exists()
    assert nowhere(done.stdout, done.stderr, tmp_path)


@pytest.mark.parametrize("status, code", [(503, 1), (500, 1), (429, 1), (400, 2)])
def test_a_hub_that_is_overloaded_or_broken_is_no_bad_input(hub: Hub, tmp_path: Path, status: int, code: int) -> None:
    hub.status = status
    done = run("me/corpus", "--to", tmp_path / "out", environment=environment(hub, tmp_path))
    assert done.returncode == code, done.stderr
    assert "'me/corpus'" in done.stderr and "Traceback" not in done.stderr
    assert nowhere(done.stdout, done.stderr, tmp_path)


def test_a_branch_that_has_moved_is_gone_on_with_at_the_commit_that_was_begun_with(hub: Hub, tmp_path: Path) -> None:
    out, more = tmp_path / "out", environment(hub, tmp_path)
    assert run("me/corpus", "--to", out, "--revision", "main", environment=more).returncode == 0
    before = content(out)
    for name in (MANIFEST, "part-00001.json"):
        (out / name).unlink()
    hub.commit = "b" * 40
    for revision in ("main", COMMIT):
        done = run("me/corpus", "--to", out, "--revision", revision, environment=more)
        assert done.returncode == 0, done.stderr
        assert content(out) == before
    other = run("me/corpus", "--to", out, "--revision", "dev", environment=more)
    assert other.returncode == 2
    assert "it holds the preparation of something else: commit, files differ" in other.stderr


@pytest.mark.parametrize("names", [["en/a.jsonl", "de/a.jsonl"], ["data/train-0.parquet", "data/validation-0.parquet"]])
def test_several_parts_of_a_data_set_are_not_taken_together_unasked(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"has several parts \(.*choose with --files|Choose with --files"):
        inputs._refuse_a_choice("me/corpus", names)
    inputs._refuse_a_choice("me/corpus", names[:1])


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), TimeoutError("too late")])
def test_a_hub_that_cannot_be_reached_is_said(error: OSError) -> None:
    try:
        raise OSError("We could not load it") from error
    except OSError as wrapped:
        problem = hub_problem(wrapped, "data.tokenizer", "me/model")
    assert problem is not None and "the Hugging Face hub cannot be reached" in problem.why
    assert hub_problem(ValueError("something else"), "data.tokenizer", "me/model") is None


def test_a_token_is_taken_out_of_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert without_token(f"GET failed with Bearer {TOKEN}!") == "GET failed with Bearer ***!"
    monkeypatch.setenv("HF_TOKEN", "")
    assert without_token("nothing to take out") == "nothing to take out"
