"""Presets say where they come from, and agree with the numbers that were published."""

from __future__ import annotations

import pytest

from holdfast.config.failure_rates import (
    FAILURE_RATES,
    FAULT_KINDS,
    LLAMA3_CAUSES,
    failure_rate,
    kind_counts,
)
from holdfast.config.problems import ConfigError


@pytest.mark.parametrize("name", [name for name in FAILURE_RATES if name != "none"])
def test_a_preset_names_its_source_and_whether_it_was_computed(name: str) -> None:
    rate = FAILURE_RATES[name]
    assert rate.name == name
    assert rate.source.endswith(("(quoted)", "(computed)", "(quoted, computed)"))
    assert 0.5e-3 < rate.hardware_per_node_day < 10e-3
    assert rate.nodes > 1


@pytest.mark.parametrize(
    "name, nodes, hours",
    [
        ("rsc1", 2048, 1.80),  # the paper's projection for 16,384 GPUs
        ("rsc1", 16_384, 0.225),  # and for 131,072
        ("rsc1", 128, 28.8),
        ("coreweave-h100", 128, 3.66 * 24),
        ("nebius", 375, 56.6),
        ("ft-hsdp", 12_500, 0.3),
    ],
)
def test_hardware_rates_give_the_published_time_between_failures(name: str, nodes: int, hours: float) -> None:
    assert 24 / (FAILURE_RATES[name].hardware_per_node_day * nodes) == pytest.approx(hours, rel=0.005)


def test_llama_3_counts_its_419_interruptions_once() -> None:
    rate = FAILURE_RATES["llama3-405b"]
    whole = (rate.hardware_per_node_day + rate.software_per_node_day) * 54 * rate.nodes
    assert whole == pytest.approx(419)
    assert rate.software_per_job_day * 54 == pytest.approx(56)


def test_measured_jobs_of_1024_gpus_failed_more_often_than_their_nodes_explain() -> None:
    rate = FAILURE_RATES["rsc1-measured"]
    assert 24 / (rate.hardware_per_node_day * rate.nodes + rate.software_per_job_day) == pytest.approx(7.9)


def test_llama_3_s_table_by_counts() -> None:
    """arXiv 2407.21783, table 5: 18 rows, 419 interruptions, 268 of them GPUs. Its percentages are another matter."""
    assert (len(LLAMA3_CAUSES), sum(cause.count for cause in LLAMA3_CAUSES)) == (18, 419)
    assert kind_counts(software=True) == {"exception": 56}
    assert kind_counts(software=False) == {"bad_gpu": 268, "bad_link": 42, "node_loss": 46, "hang": 7}
    assert {cause.kind for cause in LLAMA3_CAUSES} <= set(FAULT_KINDS)


def test_a_failure_rate_is_a_preset_or_failures_per_1000_node_days() -> None:
    assert failure_rate("rsc1") is FAILURE_RATES["rsc1"]
    given = failure_rate("6.5")
    assert given.hardware_per_node_day == pytest.approx(0.0065)
    assert given.software_per_job_day == 0


@pytest.mark.parametrize(
    "given, why",
    [("rsc3", "there is no such preset"), ("0", "at most"), ("-1", "at most"), ("nan", "at most"), ("inf", "at most")],
)
def test_an_unknown_failure_rate_is_refused_with_those_that_exist(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        failure_rate(given)
    assert "rsc1-measured" in str(refused.value) and "6.5" in str(refused.value)
