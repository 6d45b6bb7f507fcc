"""Metrics are served whatever happens to the port, and whatever happens to the server hurts nobody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import metrics
from holdfast.config import RunConfig, names
from holdfast.run_directory import RunDirectory
from tests.k8s.promql import OWN_SERIES
from tests.trainer.served import LIMIT_S, free_address, identity, scraped, until
from trainer.metrics.rank import MeasuredLog, measure
from trainer.metrics.serve import serve

ROOT = Path(__file__).parents[3]


def test_what_is_served_is_the_table_and_can_be_parsed(config: RunConfig, log: MeasuredLog) -> None:
    log.lasted("step", time.monotonic(), step=1, loss=1.0)
    log.point("straggler", rank=1, own_s=0.5, median_s=0.2)
    address = free_address()
    serve(address, log.listener)
    page = until("the page is served", lambda: scraped(address))
    families = list(text_string_to_metric_families(page))
    named = {sample.name for family in families for sample in family.samples}
    own = {series for metric in metrics.METRICS if metric.by == "rank" for series in metric.series}
    assert named == own - {metrics.MFU.name}
    for family in families:
        for sample in family.samples:
            assert sample.labels.keys() <= OWN_SERIES[sample.name]
    assert f"# HELP {metrics.STEP.name} {metrics.STEP.help}" in page


def test_a_rank_serves_at_the_place_of_its_local_rank(
    config: RunConfig, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [free_address(), free_address()]
    monkeypatch.setenv(names.ENV_METRICS, ",".join(places))
    log = MeasuredLog(run.events, "rank", rank=5)
    measure(log, config, identity(5, local_rank=1), run)
    assert 'rank="5"' in until("the second place answers", lambda: scraped(places[1]))
    assert scraped(places[0]) == ""
    log.close()


@pytest.mark.parametrize("places", [None, "", "127.0.0.1:1"])
def test_a_rank_without_a_place_serves_nothing(
    config: RunConfig, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, places: str | None
) -> None:
    monkeypatch.delenv(names.ENV_METRICS, raising=False)
    if places is not None:
        monkeypatch.setenv(names.ENV_METRICS, places)
    log = MeasuredLog(run.events, "rank", rank=1)
    measure(log, config, identity(1, local_rank=1), run)
    assert log.listener is None
    log.close()


def test_a_port_that_is_taken_is_a_warning_and_is_used_once_it_is_free(
    log: MeasuredLog, caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    host, _, port = address.rpartition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen(1)
        serve(address, log.listener, retry_s=0.02, tries=100_000)
        until("the warning", lambda: "is taken; trying again" in caplog.text)
    assert until("the page is served", lambda: scraped(address))
    assert caplog.text.count("is taken") == 1


def test_the_tries_are_limited(log: MeasuredLog, caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    host, _, port = address.rpartition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen(1)
        thread = serve(address, log.listener, retry_s=0.0, tries=3)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert "no metrics are served at" in caplog.text


def test_an_address_that_is_not_ours_is_given_up_at_once(log: MeasuredLog, caplog: pytest.LogCaptureFixture) -> None:
    thread = serve("192.0.2.1:9500", log.listener, retry_s=1000.0)
    thread.join(LIMIT_S)
    assert not thread.is_alive() and "no metrics are served at 192.0.2.1:9500" in caplog.text


SERVER = """
import os, sys, time
from trainer.metrics.serve import serve
from trainer.metrics.families import family
from holdfast.metrics import STEP
class One:
    def collect(self):
        yield family(STEP, {("run", "0"): 1})
serve(sys.argv[1], One())
sys.stdin.readline()
"""


def serving(address: str, then: str = "") -> subprocess.Popen[str]:
    """A process that listens, and does `then` when it gets a line."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER + then, address], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    )
    until("it serves", lambda: scraped(address))
    return process


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def test_the_server_keeps_no_process_alive() -> None:
    process = serving(free_address())
    process.communicate("\n", timeout=LIMIT_S)
    assert process.returncode == 0


def test_a_forked_child_does_not_hold_the_port_of_a_dead_parent() -> None:
    address = free_address()
    with serving(address, "child = os.fork()\nif child:\n    print(child, flush=True)\ntime.sleep(60)") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        process.kill()
        process.wait(LIMIT_S)
        try:
            deadline = time.monotonic() + LIMIT_S
            while listens(address) and time.monotonic() < deadline:
                time.sleep(0.05)  # it may not have run yet
            os.kill(child, 0)  # it lives, and has not the port
            assert not listens(address)
        finally:
            os.kill(child, 9)
