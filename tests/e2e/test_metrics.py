"""A job's metrics, scraped while it trains, fails and goes on; and the queries of dashboard and alerts against them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import metrics as m
from holdfast.config import load_profile, names
from k8s.monitoring_alerts import alerts
from k8s.monitoring_dashboard import COURSES, STATS
from tests.e2e.harness import Training
from tests.k8s.promql import FOREIGN_SERIES, TARGET_LABELS, uses
from tests.trainer.served import scraped

LIMIT_S = 150.0
NICED_LIMIT_S = 300.0
"""The accounting has the lowest priority, and others may keep this machine busy."""
CONFIG = load_profile("cpu-test")
PODS = ("control-0", "workers-0", "workers-1")
SETS = (
    "training.steps=5000",  # it is stopped when all has been seen
    "training.min_step_s=0.4",
    "recovery.in_process=true",
    "metrics.goodput_interval_s=1",
)
FAULTS = ({"kind": "exception", "rank": 1, "step": 8}, {"kind": "rank_sigkill", "rank": 0, "step": 16})
ABSENT = {m.MFU.name, m.STRAGGLER_SECONDS.name}
"""Not served here: a CPU has no peak to compare with, and no rank is slow."""
Sample = tuple[dict[str, str], float]


class Scraper:
    """Scrapes the three pods of a run, as Prometheus would."""

    def __init__(self, training: Training) -> None:
        self._addresses = {pod: _address(training, pod) for pod in PODS}
        self.series: dict[str, set[str]] = {}
        """Everything that was ever served: name -> its labels."""

    def scrape(self) -> dict[str, list[Sample]]:
        """What is served now: name -> samples of all pods."""
        found: dict[str, list[Sample]] = {}
        for address in self._addresses.values():
            for family in text_string_to_metric_families(scraped(address)):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append((sample.labels, sample.value))
                    self.series.setdefault(sample.name, set()).update(sample.labels)
        return found

    def values(self, metric: m.Metric, **labels: str) -> list[float]:
        """Values of a metric with these labels, now; one for each rank that serves it."""
        now = self.scrape().get(metric.series[0], [])
        return [value for found, value in now if labels.items() <= found.items()]


def _address(training: Training, pod: str) -> str:
    environment = Path(f"/proc/{training.process(pod, 'supervisor')}/environ").read_bytes().split(b"\0")
    prefix = f"{names.ENV_METRICS}=".encode()
    (found,) = (entry.removeprefix(prefix) for entry in environment if entry.startswith(prefix))
    return found.decode()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_running_job_serves_every_metric_through_its_restarts_and_no_query_asks_for_another(tmp_path: Path) -> None:
    began = time.time()
    with Training(tmp_path / "out", *SETS, faults=FAULTS) as training:
        scraper = Scraper(training)
        training.until("both ranks serve", lambda: len(scraper.values(m.STEP_SECONDS)) == 2, LIMIT_S)

        def restarts(layer: str) -> list[float]:
            return scraper.values(m.RESTARTS, layer=layer)

        training.until("the same processes go on", lambda: restarts("in_process") == [1, 1], LIMIT_S)
        training.until("new processes serve in their place", lambda: restarts("in_job") == [1, 1], LIMIT_S)
        training.until("they have trained", lambda: min(scraper.values(m.STEP), default=0) > 16, LIMIT_S)
        training.until("they commit", lambda: (scraper.values(m.COMMITTED_STEP) or [0])[0] > 16, LIMIT_S)
        (committed_at,) = scraper.values(m.COMMIT_TIME)
        assert began < committed_at <= time.time()
        training.until("goodput is known", lambda: (scraper.values(m.GOODPUT) or [0])[0] > 0, NICED_LIMIT_S)
        assert scraper.values(m.WORLD_SIZE) == [2]
        (wall_s,) = scraper.values(m.WALL_SECONDS)
        assert 0 < wall_s < time.time() - began + 1
        training.signal(signal.SIGTERM)
        assert training.wait(LIMIT_S) == 143, training.output
    assert set(scraper.series) == {series for metric in m.METRICS for series in metric.series} - ABSENT
    for metric in m.METRICS:
        for series in metric.series:
            assert scraper.series.get(series, set(metric.all_labels)) == set(metric.all_labels)
    _every_query_is_answered_by(scraper.series)


def _every_query_is_answered_by(series: dict[str, set[str]]) -> None:
    queries = [query.expr for panel in (*STATS, *COURSES) for query in panel.queries]
    queries += [alert.expr for alert in alerts(CONFIG)]
    for query in queries:
        used = uses(query)
        assert used.series <= series.keys() | ABSENT | FOREIGN_SERIES.keys(), query
        for label, name in used.labels:
            assert label in series.get(name, {label}) | TARGET_LABELS | FOREIGN_SERIES.get(name, set()), query
