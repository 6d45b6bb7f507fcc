"""Presets say where they come from, and agree with the numbers that were published."""

from __future__ import annotations

import pytest

from holdfast.config.failure_rates import FAILURE_RATES


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
