"""Goodput is accounted beside the run: within limits of time and memory, and never at the cost of what is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import metrics
from holdfast.config import dump, load_profile, names
from holdfast.goodput.events import EventLog
from holdfast.goodput.ledger import BUCKETS
from holdfast.run_directory import RunDirectory
from tests.trainer.served import LIMIT_S, free_address, samples, scraped, until
from trainer.metrics import beside
from trainer.metrics.beside import Accountant
from trainer.metrics.goodput import MIB, GoodputMetrics
from trainer.pod.pod import Pod

ROOT = Path(__file__).parents[3]
NICED_LIMIT_S = 240.0
"""A process of the lowest priority gets next to nothing of a machine that others keep busy."""


def account(seen: GoodputMetrics, code: str, limit_s: float = LIMIT_S, memory_mib: int = 512) -> None:
    seen.account([sys.executable, "-c", code], limit_s, memory_mib * MIB)


def control(seen: GoodputMetrics, metric: metrics.Metric, **labels: str) -> float | None:
    return samples(seen).get((metric.name, tuple(sorted({"run": "r", **labels}.items()))))


def printing(text: str) -> str:
    return f"print({text!r})"


GOOD = printing(
    '{"wall_s": 200.0, "goodput": 0.75, "goodput_total": 0.7, "ettr": 0.6, "buckets": {"productive": 120, "init": 50}}'
)


def test_an_accounting_becomes_goodput_by_bucket() -> None:
    seen = GoodputMetrics("r", 16)
    assert control(seen, metrics.WORLD_SIZE) == 16
    assert control(seen, metrics.GOODPUT, measure="goodput") is None, "nothing is known yet"
    account(seen, GOOD)
    assert control(seen, metrics.GOODPUT, measure="goodput") == 0.75
    assert control(seen, metrics.WALL_SECONDS) == 200
    assert control(seen, metrics.BUCKET_SECONDS, bucket="init") == 50
    assert control(seen, metrics.ACCOUNTING_FAILURES) == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; print('no run: 1 problem', file=sys.stderr); sys.exit(2)", "exit code 2: no run: 1 problem"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        (printing("nothing"), "it printed no ledger"),
        (printing("[]"), "it printed no ledger"),
        (printing('{"wall_s": 1}'), "it printed no ledger"),
        (printing('{"wall_s": "x", "buckets": {}}'), "it printed no ledger"),
        ("kept = bytearray(700 * 2**20)", "exit code 1: MemoryError"),
    ],
)
def test_an_accounting_that_fails_is_counted_and_the_one_before_it_stays(
    code: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = GoodputMetrics("r", 16)
    account(seen, GOOD)
    then = control(seen, metrics.GOODPUT_TIME)
    account(seen, code)
    assert says in caplog.text
    assert control(seen, metrics.ACCOUNTING_FAILURES) == 1
    assert (control(seen, metrics.GOODPUT, measure="goodput"), control(seen, metrics.GOODPUT_TIME)) == (0.75, then)


ARROW = """
import numpy, pyarrow
pyarrow.array(range(100_000))
kept = numpy.ones(700 * 2**17)
"""
"""Uses Arrow, and 700 MiB beside it."""


def test_all_of_the_limit_is_the_accounting_s_and_no_pool_sets_a_part_of_it_aside() -> None:
    seen = GoodputMetrics("r", 16)
    limit_mib = load_profile("cpu-test").metrics.goodput_memory_mib
    account(seen, ARROW + GOOD, memory_mib=limit_mib)
    assert control(seen, metrics.ACCOUNTING_FAILURES) == 0
    assert control(seen, metrics.GOODPUT, measure="goodput") == 0.75


def test_the_default_limit_is_above_what_the_kept_measurement_of_a_large_run_took() -> None:
    kept = json.loads((ROOT / "bench" / "results" / "cpu" / "ledger_scale.json").read_text(encoding="utf-8"))
    assert (kept["ranks"], kept["steps"]) == (1000, 10_000)
    assert load_profile("cpu-test").metrics.goodput_memory_mib >= 1.1 * kept["peak_rss_mib"]


def test_an_accounting_that_takes_too_long_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = GoodputMetrics("r", 16)
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    account(seen, code, limit_s=3.0)
    assert "it took longer than metrics.goodput_limit_s=3" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def pod(tmp_path: Path, **more: str) -> Pod:
    """A control pod that has not been started."""
    named = (names.ENV_POD, names.ENV_NODE, names.ENV_JOB)
    environment = dict.fromkeys(named, "x") | {names.ENV_SCRATCH: str(tmp_path), names.ENV_JOBSET_ATTEMPT: "0"}
    environment |= {names.ENV_STORE: "127.0.0.1:1", "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **more}
    config = load_profile("cpu-test")
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    return Pod.from_environment(names.CONTROL, config, file, RunDirectory(tmp_path / "run"), environment)


def accountants() -> list[psutil.Process]:
    """Those that this process has started and that run."""
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in running if "trainer.metrics.goodput" in child.cmdline()]


def test_an_accountant_that_ends_is_started_again_and_not_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Accountant(pod(tmp_path, **{names.ENV_METRICS: free_address()}), 2)
    try:
        keeper.keep()
        (first,) = until("it runs", accountants)
        keeper.keep()
        assert accountants() == [first]
        first.kill()
        until("it has ended", lambda: not accountants())
        keeper.keep()
        assert accountants() == [], "within beside.PAUSE_S"
        monkeypatch.setattr(beside, "PAUSE_S", 0.0)
        keeper = Accountant(pod(tmp_path, **{names.ENV_METRICS: free_address()}), 2)
        for _ in range(2):
            keeper.keep()
            (process,) = until("it runs", accountants)
            process.kill()
            until("it has ended", lambda: not accountants())
    finally:
        for process in accountants():
            process.kill()


def test_where_no_metrics_are_served_nothing_is_accounted(tmp_path: Path) -> None:
    Accountant(pod(tmp_path), 2).keep()
    assert accountants() == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_process_accounts_a_run_directory_at_the_lowest_priority(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    log = EventLog(run.events, "rank", rank=0, world_size=1, generation=1, cycle=0)
    log.point("process_start", at=time.monotonic() - 10)
    log.lasted("step", time.monotonic() - 5, step=1, loss=1.0)
    log.close()
    profile = tmp_path / "config.yaml"
    profile.write_text(dump(load_profile("cpu-test", ["metrics.goodput_interval_s=0.1"])))
    address = free_address()
    command = [sys.executable, "-m", "trainer.metrics.goodput", "--config", str(profile), "--run-dir", str(run.path)]
    process = subprocess.Popen([*command, "--address", address, "--world-size", "2"], cwd=ROOT)
    try:
        until("it serves", lambda: metrics.BUCKET_SECONDS.name + "{" in scraped(address), NICED_LIMIT_S)
        page = scraped(address)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
    finally:
        process.kill()
        process.wait(LIMIT_S)
    found = {sample.name: sample for family in text_string_to_metric_families(page) for sample in family.samples}
    assert found.keys() == {series for metric in metrics.METRICS if metric.by == "control" for series in metric.series}
    for bucket in BUCKETS:
        assert f'{metrics.BUCKET_SECONDS.name}{{bucket="{bucket}",run="cpu-test"}}' in page
