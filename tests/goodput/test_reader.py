"""What a crash or a wrong clock leaves behind can be read, and is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.goodput.ledger import account
from holdfast.goodput.reader import read_run
from tests.goodput.builder import Machine, Run, end, train


def kinds(run_dir: Path) -> list[str]:
    return [anomaly.kind for anomaly in read_run(run_dir).anomalies]


def test_a_run_directory_without_events_is_an_empty_timeline(tmp_path: Path) -> None:
    timeline = read_run(tmp_path)
    assert (list(timeline.events), timeline.processes, timeline.anomalies) == ([], (), ())


def test_a_torn_last_line_is_left_out_and_named(run: Run) -> None:
    log = run.rank(0, 0)
    log.span(1, 2, "step", step=1)
    log.span(2, 3, "step", step=2)
    log.path.write_bytes(log.path.read_bytes()[:-9])
    timeline = read_run(run.path)
    assert [event.finished_step for event in timeline.named("step")] == [1]
    assert [anomaly.kind for anomaly in timeline.anomalies] == ["torn_line"]


def test_a_last_line_that_lacks_only_its_newline_is_used(run: Run) -> None:
    log = run.rank(0, 0)
    log.span(1, 2, "step", step=1)
    log.path.write_bytes(log.path.read_bytes()[:-1])
    assert [event.finished_step for event in read_run(run.path).named("step")] == [1]
    assert kinds(run.path) == []


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty_file"),
        (b'{"schema":1,"name":"anch', "no_anchor"),
        (b'{"t":5.0,"name":"step","dur":1.0}\n', "no_anchor"),
        (b'{"name":"anchor","source":"rank","wall":"noon","mono":1}\n', "no_anchor"),
        (b'{"name":"anchor","source":"rank","wall":1,"mono":1' + b"0" * 400 + b"}\n", "no_anchor"),
        (b'{"name":"anchor","source":"rank","wall":-99000000000,"mono":1}\n', "no_anchor"),
        (b"\x00\x00\x00\x00", "no_anchor"),
        (b"\xff\xfe\n", "no_anchor"),
    ],
)
def test_a_file_without_a_usable_anchor_is_left_out_and_named(run: Run, content: bytes, kind: str) -> None:
    run.rank(0, 0).span(1, 2, "step", step=1)
    (run.path / "events" / "rank-rank1.jsonl").write_bytes(content)
    timeline = read_run(run.path)
    assert len(timeline.processes) == 1
    assert kind in [anomaly.kind for anomaly in timeline.anomalies]


def test_lines_that_are_no_events_are_left_out_and_counted(run: Run) -> None:
    log = run.rank(0, 0)
    with open(log.path, "a") as file:
        file.write(
            '{"t":1,"na{"t":2,"name":"commit"}\n[1]\n{"t":NaN,"name":"x"}\n{"t":1,"name":"y","dur":-3}\n{"t":true,"name":"z"}\n'
        )
    log.span(1, 2, "step", step=1)
    timeline = read_run(run.path)
    assert [event.name for event in timeline.events] == ["process_start", "step"]
    assert [a.text for a in timeline.anomalies] == [
        "2 unreadable line(s) left out",
        "3 line(s) without a valid time, name or duration left out",
    ]


@pytest.mark.parametrize("key", ["t", "dur"])
def test_a_time_of_400_digits_is_no_time(run: Run, key: str) -> None:
    log = run.rank(0, 0)
    with open(log.path, "a") as file:
        file.write(json.dumps({"name": "x", "t": 1, "dur": 1, key: 10**400}) + "\n")
    log.span(1, 2, "step", step=1)
    timeline = read_run(run.path)
    assert [event.name for event in timeline.events] == ["process_start", "step"]
    assert [anomaly.kind for anomaly in timeline.anomalies] == ["bad_line"]


def test_unknown_names_and_fields_are_kept_and_change_no_bucket(run: Run) -> None:
    log = run.rank(0, 0, world=1)
    train([log], 1, 1, 3)
    log.point(2.5, "coffee", strength=[1, {"x": None}])
    log.span(1.2, 1.4, "step", step="two")
    end([log], 4, "complete")
    ledger = account(read_run(run.path))
    assert ledger.buckets["productive"] == pytest.approx(3)
    assert kinds(run.path) == []


def test_a_newer_schema_is_read_and_flagged(run: Run) -> None:
    log = run.rank(0, 0)
    log.span(1, 2, "step", step=1)
    anchor, *rest = log.path.read_text().splitlines()
    log.path.write_text("\n".join([json.dumps({**json.loads(anchor), "schema": 7}), *rest]) + "\n")
    assert kinds(run.path) == ["newer_schema"]
    assert len(read_run(run.path).named("step")) == 1


def test_case_33_a_wall_clock_set_back_300_s_between_two_steps_changes_no_duration(run: Run) -> None:
    before, after = Machine(), Machine(wall=Machine().wall - 300)
    old = [run.rank(rank, 0, machine=before) for rank in range(2)]
    train(old, 1, 1, 5)  # to 6
    new = [run.rank(rank, 8, cycle=1, machine=after) for rank in range(2)]
    for log in new:
        log.span(9, 10, "restore", step=5)
    train(new, 10, 6, 10)  # to 15
    end(new, 15, "complete")
    ledger = account(read_run(run.path))
    assert ledger.wall_s == pytest.approx(15)
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-9)
    assert ledger.buckets["productive"] == pytest.approx(10)
    assert min(ledger.buckets.values()) >= 0
    flagged = [anomaly for anomaly in ledger.anomalies if anomaly.kind == "clock_step"]
    assert len(flagged) == 2
    assert "300.0 s" in flagged[0].text


def test_a_machine_whose_wall_clock_is_300_s_behind_is_put_right_by_the_steps_it_shares(run: Run) -> None:
    near = run.rank(0, 0)
    far = run.rank(1, 0, machine=Machine(boot="boot-b", mono=77.0, wall=Machine().wall - 300))
    train([near, far], 1, 1, 8)
    end([near, far], 9, "complete")
    ledger = account(read_run(run.path))
    assert ledger.wall_s == pytest.approx(9, abs=1e-6)
    assert ledger.buckets["productive"] == pytest.approx(8, abs=1e-6)
    (anomaly,) = ledger.anomalies
    assert (anomaly.kind, anomaly.where) == ("clock_skew", "node-of-worker-1")
    assert "-300.0 s" in anomaly.text


def test_a_second_of_disagreement_between_machines_is_left_alone(run: Run) -> None:
    near = run.rank(0, 0)
    far = run.rank(1, 0, machine=Machine(boot="boot-b", wall=Machine().wall + 0.8))
    train([near, far], 1, 1, 3)
    assert kinds(run.path) == []


def test_a_replacement_machine_whose_clock_is_behind_is_flagged_and_no_bucket_is_negative(run: Run) -> None:
    old = run.ranks(0)
    train(old, 1, 1, 10)
    behind = Machine(boot="boot-b", wall=Machine().wall - 300)
    new = [run.rank(rank, 20, generation=2, machine=behind) for rank in range(2)]
    train(new, 25, 11, 15)  # looks 275 s older than the steps before it
    end(new, 30, "complete")
    ledger = account(read_run(run.path))
    assert "attempt_order" in [anomaly.kind for anomaly in ledger.anomalies]
    assert min(ledger.buckets.values()) >= 0
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-9)


def test_events_of_an_in_process_restart_belong_to_it_in_whatever_order_they_were_written(run: Run) -> None:
    log = run.rank(0, 0, world=1)
    log.point(1, "attempt_start", restart=0)
    log.point(5, "attempt_start", restart=1)
    log.span(6, 7, "step", step=1)
    log.span(2, 5.5, "step", step=1, error="RankShouldRestart")  # ended by the restart, so written after its beginning
    attempts = account(read_run(run.path)).attempts
    assert [(str(a), list(a.steps)) for a in attempts] == [("g1-c0-r0", []), ("g1-c0-r1", [1])]


@pytest.mark.parametrize("error", ["RuntimeError", 5, 2.5, None])
def test_a_step_with_an_error_of_any_kind_is_not_finished(run: Run, error: object) -> None:
    log = run.rank(0, 0, world=1)
    train([log], 1, 1, 3)
    log.span(4, 5, "step", step=4, error=error)
    ledger = account(read_run(run.path))
    assert list(ledger.attempts[0].steps) == [1, 2, 3]
    assert ledger.buckets["productive"] == pytest.approx(3)
