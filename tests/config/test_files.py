"""Reading and writing config files: what is read is what was meant, and a bad file is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import ConfigError, dump, load_file, load_profile, profile_names
from holdfast.config.yaml_text import parse


@pytest.mark.parametrize("profile", profile_names())
def test_a_dumped_config_reads_back_equal(profile: str, tmp_path: Path) -> None:
    config = load_profile(profile, ["faults=[{kind: hang, step: 3}]", "checkpoint.mode=off"])
    path = tmp_path / "run.yaml"
    path.write_text(dump(config))
    assert load_file(path) == config
    assert dump(load_file(path)) == dump(config)


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ncheckpoint: {mode: off}\n")
    config = load_profile(str(path), ["training.steps=70"])
    assert (config.name, config.checkpoint.mode, config.training.steps) == ("mine", "off", 70)


def test_only_true_and_false_are_switches() -> None:
    assert parse("[off, on, yes, no, true, False]") == ["off", "on", "yes", "no", True, False]


@pytest.mark.parametrize(
    "content, why",
    [
        (b"name: a\nname: b\n", "it is not YAML (the key name stands twice"),
        (b"name: a\ntraining: {steps: 1, steps: 2}\n", "it is not YAML (the key steps stands twice"),
        (b"name: [\n", "it is not YAML ("),
        (b"\xff\xfe\xff", "it is not YAML ("),
        (b"? [a]\n: 1\n", "it is not YAML (a key must be text"),
        (b"- a\n", "it is not a mapping of keys"),
        (b"", "it is not a mapping of keys"),
        (b"!!python/object/apply:os.getpid []\n", "it is not YAML ("),
        (b"name: a\nseed: 2026-99-01\n", "it is not YAML (a value in it cannot be read: month must be in 1..12)"),
        (b'name: !!int ""\n', "it is not YAML (a value in it does not fit its tag)"),
        (b"name: !!timestamp x\n", "it is not YAML (a value in it does not fit its tag)"),
        (b"name: " + b"[" * 3000, "it is not YAML (it is nested too deep)"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_in_one_sentence(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_profile(str(path))
    (problem,) = refusal.value.problems
    assert str(problem).startswith(f"profile = {str(path)!r}"[:60])
    assert problem.why.startswith(why)


def test_a_missing_file_a_folder_and_an_unknown_profile_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    for profile, why in [
        (str(tmp_path / "none.yaml"), "no such file or directory"),
        (str(tmp_path / "folder.yaml"), "is a directory"),
        ("none", "there is no such profile"),
        ("", "there is no such profile"),
    ]:
        with pytest.raises(ConfigError) as refusal:
            load_profile(profile)
        assert refusal.value.problems[0].why == why


def test_merge_keys_and_anchors_work(tmp_path: Path) -> None:
    path = tmp_path / "anchors.yaml"
    path.write_text(
        "name: a\nmodel: &m {heads: 8}\ndata: {sequence_length: &n 32}\ntraining: {steps: *n, warmup_steps: 1}\n"
    )
    assert load_file(path).training.steps == 32
