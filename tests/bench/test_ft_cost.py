"""The bench of what fault tolerance costs: sides take turns, pairs are measured side by side, nothing is left."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import article_page, ft_cost, json_lines
from bench.arms.ft_cost_rank import Metronome
from bench.ft_cost import config_of, main, parse
from bench.ft_cost_processes import NOT_OFF, RANK, Sides
from bench.ft_cost_results import LEAD_IN, pairs_of, result
from bench.ft_cost_spec import OFF, ON, SIDES, Spec, next_turn, side_of
from bench.recovery_page import SHARED
from holdfast.config import names
from holdfast.local.processes import processes_with_token

MACHINES: list[tuple[str, list[str]]] = [("cpu-demo", []), ("gpu-local", [])]
RUN = "r"
LIMIT_S = 60.0


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return Spec(RUN, str(tmp_path / "raw.jsonl"), "", "", "", "", world=1, steps=4, settle=2)


def turn(number: int, seconds: float, run: str = RUN) -> dict[str, Any]:
    made = {"kind": "turn", "run": run, "side": side_of(number), "turn": number, "seconds": seconds, "steps": 10}
    return made | {"cpu_s": 1.01 if side_of(number) == ON else 1.0}


def test_each_pair_has_a_turn_of_each_side_and_either_may_begin() -> None:
    pairs = [(side_of(2 * pair), side_of(2 * pair + 1)) for pair in range(60)]
    assert {frozenset(pair) for pair in pairs} == {frozenset(SIDES)}
    assert 15 < sum(first == ON for first, _ in pairs) < 45


def test_every_turn_is_one_sides_next_turn() -> None:
    taken = []
    for side in SIDES:
        last = -1
        while (last := next_turn(side, last)) < 40:
            taken.append(last)
    assert sorted(taken) == list(range(40))


class Closed(Exception):
    """The store has gone, and the test is over."""


class Store:
    """What of a TCPStore the metronome uses, within one process."""

    def __init__(self) -> None:
        self._keys: dict[str, Any] = {}
        self._changed = threading.Condition()
        self.closed = False

    def add(self, key: str, count: int) -> int:
        with self._changed:
            self._keys[key] = self._keys.get(key, 0) + count
            return int(self._keys[key])

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._keys[key] = value
            self._changed.notify_all()

    def wait(self, keys: list[str], _: object) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.closed or keys[0] in self._keys, 0.2):
                raise RuntimeError("not yet")
            if self.closed:
                raise Closed

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


def test_one_side_steps_at_a_time_and_each_turn_has_its_steps(spec: Spec) -> None:
    spec = replace(spec, world=2)
    store, entered = Store(), []
    done = threading.Semaphore(0)

    def steps(side: str, rank: int) -> None:
        metronome = Metronome(spec, side, rank)
        metronome._store = store
        for step in range(1, 1000):
            try:
                metronome.enter(step)
            except Closed:
                return
            entered.append((metronome._turn, side))
            if metronome._turn >= 12:
                done.release()
                return

    threads = [threading.Thread(target=steps, args=(side, rank), daemon=True) for side in SIDES for rank in (0, 1)]
    for thread in threads:
        thread.start()
    assert done.acquire(timeout=LIMIT_S) and done.acquire(timeout=LIMIT_S)
    store.close()
    for thread in threads:
        thread.join(LIMIT_S)
    turns = [number for number, _ in entered]
    assert turns == sorted(turns), "a side has stepped in the other's turn"
    for number in range(12):
        assert turns.count(number) == spec.world * (spec.settle + spec.steps)
        assert {side for found, side in entered if found == number} == {side_of(number)}
    lines = json_lines.read([Path(spec.raw)])
    assert [line["turn"] for line in lines] == list(range(12)) and {line["rank"] for line in lines} == {0}
    assert all(line["steps"] == spec.steps and line["seconds"] > 0 for line in lines)


def test_a_turn_counts_the_steps_after_those_that_settle(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    metronome = Metronome(spec, side_of(0), 0)
    metronome._store = Store()
    metronome._store.set("over/0", "1")
    monkeypatch.setattr(metronome, "_wait", lambda _: None)
    seconds = iter([0.0, 100.0, 107.0, 108.0, 109.0, 110.0, 111.0])  # entries of steps 1, 2 (settling), 3 ..., 7
    monkeypatch.setattr("bench.arms.ft_cost_rank.time.perf_counter", lambda: next(seconds))
    for step in range(1, 8):
        metronome.enter(step)
    (line,) = json_lines.read([Path(spec.raw)])
    assert (line["seconds"], line["steps"]) == (4.0, 4)


def test_a_side_that_was_restarted_ends_the_bench(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("bench.arms.ft_cost_rank.os._exit", leave)
    metronome = Metronome(spec, side_of(0), 0)
    metronome.enter(1)
    metronome.enter(2)
    with pytest.raises(SystemExit) as ended:
        metronome.enter(1)
    (line,) = json_lines.read([Path(spec.raw)])
    assert ended.value.code == 1 and line["kind"] == "failed" and "was restarted" in line["why"]


def test_a_pair_is_two_turns_of_one_start_after_its_lead_in() -> None:
    first = 2 * LEAD_IN
    whole = [turn(number, 1.0) for number in range(first + 4)]
    assert [pair.number for pair in pairs_of(whole)] == [LEAD_IN, LEAD_IN + 1]
    assert pairs_of(whole[: first + 1]) == []
    mixed = [turn(first, 1.0), turn(first + 1, 1.0, run="other"), {"kind": "run", "run": RUN}]
    assert pairs_of(mixed) == []


def test_the_cost_is_the_median_of_on_over_off_with_its_interval_and_the_machines_own_noise(tmp_path: Path) -> None:
    lines = []
    for number in range(2 * LEAD_IN, 2 * LEAD_IN + 80):
        drift = 1 + 0.2 * number / 80  # a machine that slows down costs neither side
        lines.append(turn(number, 2.0 * drift * (1.003 if side_of(number) == ON else 1.0)))
    arguments = parse(["--raw", str(tmp_path / "raw"), "--commit", "abc"])
    made = result(pairs_of(lines), config_of("cpu-demo", []), arguments)
    assert made["overhead_fraction"] == pytest.approx(0.003, abs=0.002)
    low, high = made["ci95"]
    assert low <= made["overhead_fraction"] <= high and low < 0.003 < high
    assert made["cpu_overhead_fraction"] == pytest.approx(0.01)
    assert (made["pairs"], made["steps"], made["ranks"]) == (40, 400, 2)
    assert made["null_fraction"] == pytest.approx(0.005, abs=0.003)
    assert made["step_s"][ON] > made["step_s"][OFF] > 0.2


def test_documents_name_the_cost_on_gpus_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(article_page, "RESULTS", tmp_path)
    lines = [turn(number, 2.002 if side_of(number) == ON else 2.0) for number in range(20)]
    made = json.dumps(result(pairs_of(lines), config_of("cpu-demo", []), parse(["--commit", "abc"])))
    for hardware in ("cpu", SHARED, "h200x2"):
        (tmp_path / hardware).mkdir()
        (tmp_path / hardware / "ft_cost.json").write_text(made)
        said = article_page.cost(tmp_path)
        assert ("cost 0.10% of a step of 0.200 s (95 %: 0.10% to 0.10%; 8 pairs" in said) is (hardware == "h200x2")
        assert ("Not measured yet" in said) is (hardware != "h200x2"), "ranks that share a GPU disturb each other"


@pytest.mark.parametrize(("profile", "sets"), MACHINES)
def test_the_side_that_is_on_carries_everything_and_meets_neither_fault_nor_save(profile: str, sets: list[str]) -> None:
    config = config_of(profile, sets)
    assert (config.recovery.in_process, config.recovery.in_job, config.checkpoint.mode) == (True, True, "async")
    assert config.recovery.learn_step_timeout and config.metrics.port and not config.faults
    assert min(config.training.steps, config.checkpoint.interval_steps) >= 10**9
    assert config.training.min_step_s == 0 and config.world_size == 2 and config.cluster.nodes == 1


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    arguments = parse(["--raw", str(tmp_path / "raw.jsonl"), "--commit", "abc"])
    made = Sides(config_of("gpu-local", []), tmp_path, RUN, arguments)
    yield made
    made._stack.close()


def test_one_side_has_the_manifests_environment_and_the_other_nothing_of_ours(sides: Sides) -> None:
    owner = sides._run.take(nodes=1, job="bench", jobset_attempt=0, pod="bench", lease_s=1)
    on, off = sides._of_the_launcher(owner), sides._of_a_bare_rank(1)
    assert set(NOT_OFF) <= on.keys() and not off.keys() & set(NOT_OFF)
    assert not [name for name in off if name.startswith("HOLDFAST_")]
    assert on["PYTORCH_ALLOC_CONF"] == off["PYTORCH_ALLOC_CONF"]
    assert on[names.ENV_METRICS].count(":") == 2 and on[names.ENV_GENERATION] == str(owner.generation)
    assert sides._launcher(owner)[-4:-1] == ["-m", RANK, ON]


@pytest.mark.parametrize("words", [["--pairs", "0"], ["--settle", "0"], ["--steps", "x"]])
def test_wrong_words_are_one_message_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err


TINY = (
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.layers=1",
    "data.sequence_length=32",
    "training.micro_batch_size=1",
    "training.global_batch_size=2",
    "data.limit_mib=1",
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_sides_train_by_turns_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "ab" * 8
    monkeypatch.setattr("bench.ft_cost_processes.os.urandom", lambda _: bytes.fromhex(token))
    sets = [word for key in TINY for word in ("--set", key)]
    words = ["--pairs", "3", "--steps", "4", "--raw", str(tmp_path / "raw.jsonl"), "--out", str(tmp_path / "r.json")]
    monkeypatch.setattr(sys, "argv", ["ft_cost", *words, *sets, "--commit", "abc", "--deadline", "360"])
    assert main() == 0
    made = json.loads((tmp_path / "r.json").read_text())
    assert made["pairs"] >= 3 and made["steps"] >= 12 and made["step_s"][OFF] > 0
    assert processes_with_token(token) == []


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_side_that_dies_is_one_message_and_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ft_cost, "POLL_S", 0.05)
    monkeypatch.setattr("bench.ft_cost_processes.RANK", "bench.no_such_module")
    words = ["--raw", str(tmp_path / "raw.jsonl"), "--out", str(tmp_path / "r.json"), "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", ["ft_cost", *words])
    assert main() == 1
    said = capsys.readouterr().out
    assert "ended with" in said and "no_such_module" in said and not os.path.exists(tmp_path / "r.json")
