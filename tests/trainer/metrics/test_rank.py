"""A rank's metrics are what its events say, and go on in a new process where the records do."""

from __future__ import annotations

import math
import os
import time

import pytest

from holdfast import metrics
from holdfast.checkpoint_folder import Marker
from holdfast.config import RunConfig, load_profile, names
from holdfast.config.flops import flops_per_token, peak_flops_per_s
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from tests.trainer.served import LIMIT_S, identity, samples, value
from trainer.metrics.rank import MeasuredLog, RankMetrics

# --- from events to numbers ---


def test_a_finished_step_counts_and_one_that_raised_does_not(log: MeasuredLog) -> None:
    for step in (1, 2):
        with log.span("step", step=step) as span:
            span["loss"] = 4.5 - step
    with pytest.raises(ValueError, match="broken"), log.span("step", step=3):
        raise ValueError("broken")
    seen = log.listener
    assert value(seen, metrics.STEP) == 2
    assert value(seen, metrics.LOSS) == 2.5
    assert value(seen, "holdfast_step_seconds_count") == 2
    assert 0 < (value(seen, "holdfast_step_seconds_sum") or 0) < LIMIT_S
    assert value(seen, metrics.TOKENS) == 2 * 8 * 64 / 2, "steps x batch x sequence / ranks"
    assert value(seen, metrics.LEARNING_RATE) == pytest.approx(1e-3 * 2 / 4), "second of four steps of warm-up"
    assert abs(time.time() - (value(seen, metrics.STEP_TIME) or 0)) < LIMIT_S


def test_the_sum_of_step_times_is_that_of_the_ledger(log: MeasuredLog, run: RunDirectory) -> None:
    for step in range(1, 6):
        with log.span("step", step=step) as span:
            span["loss"] = 1.0
            time.sleep(0.01)
    from holdfast.goodput.reader import read_run

    written = sum(event.end - event.start for event in read_run(run.path).events if event.name == "step")
    assert value(log.listener, "holdfast_step_seconds_sum") == pytest.approx(written, abs=1e-6)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_counted(log: MeasuredLog, loss: float) -> None:
    for step, each in enumerate((1.0, loss, 2.0), 1):
        log.lasted("step", time.monotonic(), step=step, loss=each)
    assert value(log.listener, metrics.NONFINITE_LOSSES) == 1
    assert value(log.listener, metrics.LOSS) == 2.0


def test_a_step_without_a_loss_is_no_bad_loss(log: MeasuredLog) -> None:
    log.lasted("step", time.monotonic(), step=1)
    assert value(log.listener, metrics.NONFINITE_LOSSES) == 0
    assert value(log.listener, metrics.LOSS) is None


@pytest.mark.parametrize("span", ["stage", "checkpoint_wait", "drain"])
def test_time_blocked_by_saves_is_added_up(log: MeasuredLog, span: str) -> None:
    log.lasted(span, time.monotonic() - 2, step=5)
    log.lasted(span, time.monotonic() - 3, step=10, tier="local")
    assert value(log.listener, metrics.BLOCKED_SECONDS) == pytest.approx(5, abs=0.5)


def test_time_in_the_background_blocks_nothing(log: MeasuredLog) -> None:
    log.lasted("persist", time.monotonic() - 2, step=5)
    log.lasted("write", time.monotonic() - 2, step=5)
    assert value(log.listener, metrics.BLOCKED_SECONDS) == 0


def test_a_commit_has_its_own_time_and_not_that_of_its_notice(log: MeasuredLog) -> None:
    log.point("commit", at=time.monotonic() - 100, step=5)
    assert value(log.listener, metrics.COMMITTED_STEP) == 5
    age = time.time() - (value(log.listener, metrics.COMMIT_TIME) or 0)
    assert 99 < age < 100 + LIMIT_S


def test_failed_saves_and_data_are_counted(log: MeasuredLog) -> None:
    log.point("save_failed", step=5, error="full")
    log.point("save_failed", step=10, error="full")
    log.lasted("data", time.monotonic() - 1, step=5)
    assert value(log.listener, metrics.SAVE_FAILURES) == 2
    assert value(log.listener, metrics.DATA_SECONDS) == pytest.approx(1, abs=0.5)


def commit(run: RunDirectory, step: int, age_s: float) -> None:
    folder = run.checkpoints / names.step_folder(step)
    folder.mkdir(parents=True)
    marker = folder / names.COMMITTED
    marker.write_text(Marker(step, "g1-c0-r0", 1, 2, ()).text())
    os.utime(marker, (time.time() - age_s, time.time() - age_s))


def test_the_age_of_the_last_commit_survives_the_process_that_made_it(log: MeasuredLog, run: RunDirectory) -> None:
    assert value(log.listener, metrics.COMMITTED_STEP) == 0
    assert time.time() - (value(log.listener, metrics.COMMIT_TIME) or 0) < LIMIT_S, "since this process began"
    commit(run, 10, age_s=5000)
    log.lasted("restore", time.monotonic(), step=10, tier="shared")
    assert value(log.listener, metrics.STEP) == value(log.listener, metrics.COMMITTED_STEP) == 10
    assert time.time() - (value(log.listener, metrics.COMMIT_TIME) or 0) == pytest.approx(5000, abs=LIMIT_S)


def test_a_restore_from_the_nodes_leaves_the_age_of_what_is_on_the_shared_storage(
    log: MeasuredLog, run: RunDirectory
) -> None:
    commit(run, 5, age_s=9000)
    commit(run, 10, age_s=5000)
    commit(run, 20, age_s=10)  # of a time line that was left
    log.lasted("restore", time.monotonic(), step=13, tier="local")
    assert value(log.listener, metrics.STEP) == 13
    assert value(log.listener, metrics.COMMITTED_STEP) == 10
    assert time.time() - (value(log.listener, metrics.COMMIT_TIME) or 0) == pytest.approx(5000, abs=LIMIT_S)


def test_a_marker_that_cannot_be_read_is_a_warning(log: MeasuredLog, caplog: pytest.LogCaptureFixture) -> None:
    log.lasted("restore", time.monotonic(), step=10, tier="shared")
    assert "the age of the newest commit is not known" in caplog.text
    assert value(log.listener, metrics.COMMITTED_STEP) == 10


def test_only_rank_0_asks_the_storage(config: RunConfig, run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    seen = RankMetrics(config, identity(1), run)
    seen.saw({"name": "restore", "t": 0.0, "dur": 1.0, "step": 10, "tier": "shared"})
    assert value(seen, metrics.STEP, rank="1") == 10
    assert not caplog.text, "a thousand ranks would ask for one and the same file, and it is not there"


def test_a_failed_restore_says_nothing(log: MeasuredLog) -> None:
    log.lasted("restore", time.monotonic(), step=10, error="OSError")
    assert value(log.listener, metrics.STEP) is None


def test_restarts_are_told_by_layer_and_go_on_in_a_new_process(log: MeasuredLog) -> None:
    log.point("attempt_start", restart=0)
    layers = {layer: value(log.listener, metrics.RESTARTS, layer=layer) for layer in metrics.LAYERS}
    assert layers == {"in_process": 0, "in_job": 2, "generation": 2}
    log.point("attempt_start", restart=1)
    assert value(log.listener, metrics.RESTARTS, layer="in_process") == 1


def test_only_rank_0_speaks_of_commits(config: RunConfig, run: RunDirectory) -> None:
    other = {name for name, _ in samples(RankMetrics(config, identity(1), run))}
    first = {name for name, _ in samples(RankMetrics(config, identity(0), run))}
    assert first - other == {metric.name for metric in metrics.RANK_0_ONLY}


def test_nothing_is_saved_is_told_apart_from_any_interval(run: RunDirectory) -> None:
    seen = RankMetrics(load_profile("cpu-test", ["checkpoint.mode=off"]), identity(), run)
    assert value(seen, metrics.SAVE_INTERVAL) == 0


def test_every_event_is_written_as_without_metrics(run: RunDirectory, log: MeasuredLog) -> None:
    plain = EventLog(run.events, "rank", rank=1)
    for each in (plain, log):
        each.point("commit", at=1.0, step=5)
        each.lasted("stage", 2.0, step=5)
    kept = [[line.split(b",", 1)[0] for line in each.path.read_bytes().splitlines()[1:]] for each in (plain, log)]
    assert kept[0] == kept[1] == [b'{"t":1.0', b'{"t":2.0']
    plain.close()


def test_a_log_that_nobody_listens_to_works(run: RunDirectory) -> None:
    silent = MeasuredLog(run.events, "rank", rank=0)
    silent.point("commit", step=5)
    silent.close()


# --- MFU ---


def test_mfu_is_what_the_step_did_of_what_the_gpu_can(run: RunDirectory) -> None:
    config = load_profile("llama3-8b-p5x2")
    seen = RankMetrics(config, identity(world_size=16), run)
    seen.saw({"name": "step", "t": 0.0, "dur": 0.4, "step": 1, "loss": 1.0})
    # One sample of 2048 tokens per rank; 7.5 G parameters multiply, 32 x 4096 wide attention over 2048 tokens.
    flops = 2048 * (6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 2048)
    expected = flops / 0.4 / 989.4e12
    found = samples(seen)["holdfast_mfu_ratio", (("rank", "0"), ("run", "llama3-8b-p5x2"))]
    assert found == pytest.approx(expected) and 0.2 < found < 0.3


@pytest.mark.parametrize("profile", ["cpu-test", "gpu-local"])
def test_without_a_known_peak_there_is_no_mfu(profile: str, run: RunDirectory) -> None:
    config = load_profile(profile)
    assert peak_flops_per_s(config) is None
    seen = RankMetrics(config, identity(), run)
    seen.saw({"name": "step", "t": 0.0, "dur": 0.4, "step": 1, "loss": 1.0})
    assert not any(name == metrics.MFU.name for name, _ in samples(seen))


def test_the_operations_per_token_are_those_of_the_literature() -> None:
    # The Llama 3 paper's model of 405 B: 3.8e25 operations for 15.6e12 tokens, 6 x parameters, at short sequences.
    m = load_profile("llama3-8b-p5x2").model.model_copy(
        update={"hidden_size": 16384, "intermediate_size": 53248, "layers": 126, "heads": 128, "kv_heads": 8}
    )
    assert flops_per_token(m, 8192) * 15.6e12 == pytest.approx(3.8e25, rel=0.1)
    small = load_profile("gpt2-g5x2").model
    # Tied embeddings multiply once as the output layer; 124 M parameters less 1024 positions.
    assert flops_per_token(small, 0) == 6 * (124_439_808 - 1024 * 768)


# --- stragglers ---


def test_the_seconds_that_a_slow_rank_costs_are_told_under_its_own_number_until_it_keeps_up_or_a_new_attempt_begins(
    log: MeasuredLog,
) -> None:
    def told() -> dict[str, float]:
        found = samples(log.listener).items()
        return {dict(of)["rank"]: seconds for (name, of), seconds in found if name == metrics.STRAGGLER_SECONDS.name}

    assert told() == {}
    for rank in (3, 5):
        log.point("straggler", rank=rank, own_s=0.5 + rank, median_s=0.5)
    assert told() == {"3": 3.0, "5": 5.0}
    log.point("straggler_over", rank=3)
    assert told() == {"5": 5.0}
    log.point("attempt_start", restart=1)
    assert told() == {}
