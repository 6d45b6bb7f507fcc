"""`holdfast plan`: what it prints, what it refuses, and the profile that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.commands import plan_write
from holdfast.commands.plan_write import write_plan
from holdfast.commands.plan_yaml import with_value
from holdfast.config import ConfigError, dump, load_profile, profile_names
from holdfast.config.load import PROFILES
from holdfast.config.yaml_text import parse
from holdfast.goodput.planner import plan_for
from tests.goodput.builder import Run, begin
from tests.goodput.planner.jobs import setting

CLUSTER = "llama3-8b-p5x8"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says on stderr when it refuses with code 2: one problem, and nothing on stdout."""
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err and "1 problem\n" in said.err
    return said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "nope"], "profile = 'nope': there is no such profile"),
        (["--profile", CLUSTER, "--failure-rate", "rsc9"], "failure rate = 'rsc9': there is no such preset"),
        (["--profile", CLUSTER, "--failure-rate", "-3"], "failure rate = '-3': failures per 1,000 node-days"),
        (["--profile", CLUSTER, "--failure-rate", "nan"], "failure rate = 'nan'"),
        (["--profile", CLUSTER, "--nodes", "many"], "--nodes = 'many': it is neither a number nor a range"),
        (["--profile", CLUSTER, "--nodes", "0"], "--nodes = '0..0': a range is FIRST..LAST"),
        (["--profile", CLUSTER, "--nodes", "2..4096"], "--nodes = '2..4096'"),
        (["--profile", CLUSTER, "--set", "training.steps=0"], "training.steps"),
        (["--profile", CLUSTER, "--from", "/nonexistent/run"], "DIR = '/nonexistent/run': it does not exist"),
        (["--profile", CLUSTER, "--write", "plan.json"], "--write = 'plan.json': profiles are YAML files"),
        (["--profile", CLUSTER, "--nodes", "2..8", "--write", "x.yaml"], "a profile has one number of nodes"),
        (["--profile", "cpu-demo", "--set", "checkpoint.mode=off"], "checkpoint.mode"),
    ],
)
def test_bad_input_is_one_message_and_code_2(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in refused(capsys, *words)


def test_a_run_without_a_finished_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "run")
    begin(run.ranks(1.0), 2.0)
    run.close()
    (tmp_path / "run" / "run.yaml").write_text(dump(load_profile("cpu-demo")))
    said = refused(capsys, "--profile", "cpu-demo", "--from", str(tmp_path))
    assert f"--from = '{tmp_path}': no step was finished in it" in said


def test_the_table_has_the_plan_its_changes_and_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", CLUSTER, "--explain"]) == 0
    said = capsys.readouterr().out
    for part in ("shared save every", "recommended", "What each single change", "one spare more", "nine of ten runs",
                 "What the plan rests on", "bench/results/h200x2/checkpoint.json", "prices: $55.04"):  # fmt: skip
        assert part in said


def test_a_range_has_a_row_per_doubling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", CLUSTER, "--nodes", "2..2048"]) == 0
    rows = re.findall(r"^ +(\d+) +[\d.]+ ", capsys.readouterr().out, re.MULTILINE)
    assert [int(row) for row in rows] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def test_where_there_is_no_number_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", CLUSTER, "--failure-rate", "6.5"]) == 0
    said = capsys.readouterr().out
    assert "- (none)" in said and "node hardware alone" in said and "recommended" not in said.split("note:")[0]


def test_json_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", CLUSTER, "--nodes", "4..8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [plan["nodes"] for plan in found["plans"]] == [4, 8]
    assert found["failure_rate"]["name"] == "rsc1-measured"


@pytest.mark.parametrize("profile", profile_names())
def test_what_is_written_passes_check_and_says_what_was_recommended(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "planned.yaml"
    overrides = ["--set", "seed=77"]
    if profile == "llama3-8b-p5x2":
        # Its note says that saves outlast the interval; the plan mends that.
        overrides += ["--set", "storage.accept_slow_writes=a test"]
    assert main(["plan", "--profile", profile, *overrides, "--json", "--write", str(target)]) == 0
    choice = json.loads(capsys.readouterr().out)["plans"][0]["recommended"]["choice"]
    assert main(["check", "--profile", str(target)]) == 0
    written = load_profile(str(target))
    assert written.seed == 77
    assert written.checkpoint.interval_steps == choice["shared_interval_steps"]
    assert written.checkpoint.local.interval_steps == choice["local_interval_steps"]
    assert written.recovery.spares == choice["spares"]
    assert written.recovery.standby is choice["standby"]
    comments = [line for line in (PROFILES / f"{profile}.yaml").read_text().splitlines() if line.startswith("#")]
    assert [line for line in target.read_text().splitlines() if line.startswith("#")] == comments


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.yaml"
    target.write_text("mine")
    said = refused(capsys, "--profile", CLUSTER, "--write", str(target))
    assert "it exists" in said and target.read_text() == "mine"
    assert main(["plan", "--profile", CLUSTER, "--write", str(target), "--force"]) == 0
    assert load_profile(str(target)).name == CLUSTER


def test_of_two_writers_the_first_one_wins(tmp_path: Path) -> None:
    """The file came to be while the plan was computed."""
    target = tmp_path / "mine.yaml"
    target.write_text("mine")
    one = setting(CLUSTER)
    with pytest.raises(ConfigError, match="it exists"):
        write_plan(CLUSTER, [], plan_for(one, with_changes=False), target, force=False)
    assert target.read_text() == "mine"


def test_a_text_that_would_mean_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plan_write, "with_value", lambda text, path, value: text.replace("keep_last: 3", "keep_last: 4")
    )
    plan = plan_for(setting(CLUSTER), with_changes=False)
    with pytest.raises(ConfigError, match="would change more than is meant"):
        write_plan(CLUSTER, [], plan, tmp_path / "x.yaml", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_profile_with_an_anchor_on_what_changes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "anchored.yaml"
    text = (PROFILES / f"{CLUSTER}.yaml").read_text()
    source.write_text(
        text.replace("keep_last: 3", "keep_last: &n 3").replace("writer_threads: 2", "writer_threads: *n")
    )
    assert load_profile(str(source)).checkpoint.writer_threads == 3
    words = ["--profile", str(source), "--set", "checkpoint.keep_last=4", "--write", str(tmp_path / "x.yaml")]
    assert "cannot be edited" in refused(capsys, *words)
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(("profile", "nodes"), [(CLUSTER, 4), (CLUSTER, 7), ("llama3-8b-p5x2", 8)])
def test_with_other_nodes_what_is_written_takes_the_step_time_that_was_planned(
    profile: str, nodes: int, tmp_path: Path
) -> None:
    """Each node has as much to do in a step as one of the profile's: as many samples, in as many passes."""
    target = tmp_path / "planned.yaml"
    assert main(["plan", "--profile", profile, "--nodes", str(nodes), "--json", "--write", str(target)]) == 0
    before, written = load_profile(profile), load_profile(str(target))
    assert written.cluster.nodes == nodes
    assert written.training.expected_step_s == before.training.expected_step_s
    assert written.accumulation == before.accumulation
    assert written.training.global_batch_size * before.cluster.nodes == before.training.global_batch_size * nodes


def test_with_the_profiles_own_nodes_its_batch_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "planned.yaml"
    assert main(["plan", "--profile", CLUSTER, "--nodes", "8", "--json", "--write", str(target)]) == 0
    assert load_profile(str(target)).training == load_profile(CLUSTER).training


@pytest.mark.parametrize(
    ("nodes", "least", "written"),
    [
        (4, 4, 2),
        (9, 4, 6),  # 288 samples cannot be spread over 4 or 5 nodes of 8 ranks with 2 samples each
        (7, 4, 7),
        (16, 8, 16),  # all of them before, all of them after
    ],
)
def test_the_fewest_nodes_go_with_the_nodes_as_far_as_the_batch_allows(
    nodes: int, least: int, written: int, tmp_path: Path
) -> None:
    target = tmp_path / "planned.yaml"
    words = ["--nodes", str(nodes), "--set", f"recovery.min_nodes={least}", "--json", "--write", str(target)]
    assert main(["plan", "--profile", CLUSTER, *words]) == 0
    assert load_profile(str(target)).recovery.min_nodes == written


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("8", None),
        ("4", "256 samples a step on the profile's 8, 128 on 4;"),
        ("4..16", "profile's 8, 128 on 4, 512 on 16;"),
    ],
)
def test_the_plan_says_that_the_batch_goes_with_the_nodes(
    nodes: str, says: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--profile", CLUSTER, "--nodes", nodes]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "the batch goes with the nodes" in line]
    assert len(notes) == (0 if says is None else 1)
    assert says is None or says in notes[0]


def test_what_would_not_be_a_valid_profile_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "many.yaml"
    said = refused(capsys, "--profile", CLUSTER, "--nodes", "2048", "--write", str(target))
    assert "would not be a valid profile" in said and "cluster.nodes" in said
    assert not target.exists()


def test_nothing_is_written_where_nothing_is_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "none.yaml"
    said = refused(capsys, "--profile", CLUSTER, "--failure-rate", "rsc1", "--write", str(target))
    assert "nothing is recommended" in said and not target.exists()


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("a: 1 # why\nb: {c: 2}\n", ["a"], "a: 9 # why\nb: {c: 2}\n"),
        ("a: 1\nb: {c: 2, d: 3}\n", ["b", "c"], "a: 1\nb: {c: 9, d: 3}\n"),
        ("b: {c: 2} # why\n", ["b", "x"], "b: {c: 2, x: 9} # why\n"),
        ("b: {}\n", ["b", "x"], "b: {x: 9}\n"),
        ("b:\n  c: 2 # why\nd: 1\n", ["b", "x"], "b:\n  c: 2 # why\n  x: 9\nd: 1\n"),
        (
            "b:\n  c: >-\n    two\n    lines\n\n# d\nd: 1\n",
            ["b", "x"],
            "b:\n  c: >-\n    two\n    lines\n  x: 9\n\n# d\nd: 1\n",
        ),
        ("b:\n  c: [1,\n    2]\n", ["b", "c"], "b:\n  c: 9\n"),
        ("b:\n  c:\n  - 1\n  - 2 # two\nd: 1\n", ["b", "c"], None),
        ("b:\nd: 1\n", ["b", "x"], "b: {x: 9}\nd: 1\n"),
        ("a: 1", ["b", "x"], "a: 1\nb: {x: 9}\n"),
        ("", ["b", "x"], "b: {x: 9}\n"),
        ("a: 'ü' # 1\nb: 2\n", ["b"], "a: 'ü' # 1\nb: 9\n"),
    ],
)
def test_a_value_is_put_into_yaml_and_the_rest_stays(text: str, path: list[str], expected: str | None) -> None:
    found = with_value(text, path, 9)
    if expected is not None:
        assert found == expected
    before = parse(text) or {}
    place = before
    for key in path[:-1]:
        if not place.get(key):
            place[key] = {}
        place = place[key]
    place[path[-1]] = 9
    assert parse(found) == before


def test_a_value_is_not_put_below_something_that_is_no_section() -> None:
    with pytest.raises(KeyError, match="a"):
        with_value("a: [1]\n", ["a", "b"], 1)
