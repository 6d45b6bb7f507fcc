"""`holdfast run --faults FILE`: legal YAML that is no list of faults is refused in one message, before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.commands.run import read_config
from holdfast.config import ConfigError


@pytest.mark.parametrize("seed", ["", "seed: 7\n"])
@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("[{kind: hang, rank: 1, step: 2026-01-01}]", "faults.0.step = datetime.date(2026, 1, 1): "),
        ("[{kind: hang, rank: 1, step: 2026-99-01}]", "a value in it cannot be read: month must be in 1..12"),
        ("[{kind: hang, rank: !!binary aGk=, step: 3}]", "faults.0.rank = b'hi': "),
        ("[{kind: hang, rank: 1, step: .nan}]", "faults.0.step = nan: "),
        ("&a [*a]", "]: it should be a section, with keys of its own"),
        ("[&a {kind: hang, step: 3, more: *a}]", "faults.0.more = "),
        (f"[{'[' * 400}{']' * 400}]", "it is nested too deep"),
        (f"[{{kind: 0x{'f' * 5000}}}]", "a number in it is too long"),
        ("[]\nfaults: []", "the key faults stands twice"),
        ("[{kind: hang, step: 3, step: 4}]", "the key step stands twice"),
    ],
)
def test_a_faults_file_with_values_that_are_none_is_refused(faults: str, said: str, seed: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(f"{seed}faults: {faults}\n")
    with pytest.raises(ConfigError) as refusal:
        read_config("cpu-test", [], path)
    (problem,) = refusal.value.problems
    assert said in str(problem)


def test_a_word_that_is_a_switch_in_older_yaml_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{kind: off, rank: 1, step: 3}]\n")
    with pytest.raises(ConfigError, match=r"faults\.0\.kind = 'off'"):
        read_config("cpu-test", [], path)


def test_faults_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "faults:\n- &one {kind: slow_rank, rank: 1, step: 5, factor: 2.5, for_steps: 3}\n- {<<: *one, step: 9}\n"
    )
    faults = read_config("cpu-test", [], path).faults
    assert [(fault.id, fault.factor, fault.for_steps) for fault in faults] == [
        ("slow_rank-rank1-step5", 2.5, 3),
        ("slow_rank-rank1-step9", 2.5, 3),
    ]
