"""Published claims come out of the closed forms. Each row names its source; tolerances are those of the claims."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast.config.failure_rates import FAILURE_RATES
from holdfast.goodput.model import ettr, runtime_goodput, young_s
from holdfast.goodput.model.rates import DAY_S, mtbf_s

RSC = "Meta RSC, arXiv 2410.21680"
LLAMA3 = "Llama 3, arXiv 2407.21783 section 3.3.4"
MINUTE, HOUR = 60.0, 3600.0


def hardware_mtbf_s(per_thousand_node_days: float, nodes: float) -> float:
    """The rate as the papers use it: hardware alone, whatever the size."""
    return DAY_S / (per_thousand_node_days / 1000 * nodes)


@pytest.mark.parametrize("gpus, hours, printed", [(16_384, 1.803, 1.8), (131_072, 0.225, 0.23)], ids=[RSC, RSC])
def test_projected_time_between_failures(gpus: int, hours: float, printed: float) -> None:
    found = mtbf_s(FAILURE_RATES["rsc1"], gpus // 8).value / HOUR
    assert found == pytest.approx(hours, abs=0.001)
    assert found == pytest.approx(printed, rel=0.025)


@pytest.mark.parametrize("gpus, measured_h, predicted_h", [(8, 47.7 * 24, 153.8 * 24), (1024, 7.9, 28.8)])
def test_small_jobs_fail_far_more_often_than_their_hardware_so_there_is_no_number(
    gpus: int, measured_h: float, predicted_h: float
) -> None:
    """RSC, measured: 47.7 days at 8 GPUs and 7.9 h at 1,024."""
    assert hardware_mtbf_s(6.5, gpus / 8) / HOUR == pytest.approx(predicted_h, rel=0.002)
    assert predicted_h / measured_h > 3
    found = mtbf_s(FAILURE_RATES["rsc1"], gpus // 8)
    assert not found.valid
    assert "hardware alone" in str(found) and "rsc1-measured" in str(found)


def test_with_a_software_part_the_measured_time_at_1024_gpus_is_predicted() -> None:
    assert mtbf_s(FAILURE_RATES["rsc1-measured"], 128).value / HOUR == pytest.approx(7.9)


class Claim(NamedTuple):
    """A published ETTR and what Meta's closed form gives for it."""

    source: str
    rate: float
    nodes: float
    interval_s: float
    write_s: float
    restart_s: float
    closed_form: float
    published: float
    tolerance: float


NON_BLOCKING = f"{RSC}: non-blocking saves every 5 min on 16k GPUs give 0.93"
CLAIMS = [
    Claim(NON_BLOCKING, 6.5, 2000, 5 * MINUTE, 0, 5 * MINUTE, 0.9322, 0.93, 0.005),
    Claim(NON_BLOCKING, 6.5, 2048, 5 * MINUTE, 0, 5 * MINUTE, 0.9307, 0.93, 0.005),
    Claim(f"{RSC}: 12,000 GPUs reach 0.9 if a save takes 10 s", 6.5, 1500, 0, 10, 5 * MINUTE, 0.9205, 0.9, 0.025),
    Claim(f"{RSC}: same, restart of 10 min", 6.5, 1500, 0, 10, 10 * MINUTE, 0.8875, 0.9, 0.025),
    Claim(f"{RSC}: same, or if r_f falls to 1 and a save takes 5 min", 1.0, 1500, 0, 300, 300, 0.8979, 0.9, 0.005),
    Claim(
        f"{RSC}: 100,000 GPUs at RSC-2's rate reach 0.9 with interval and restart of 2 min",
        2.34, 12_500, 2 * MINUTE, 0, 2 * MINUTE, 0.939, 0.9, 0.045,
    ),
    Claim(f"{RSC}: same, saves of 5 s", 2.34, 12_500, 2 * MINUTE, 5, 2 * MINUTE, 0.9015, 0.9, 0.005),
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.source)
def test_claim_of_meta(claim: Claim) -> None:
    mtbf = hardware_mtbf_s(claim.rate, claim.nodes)
    interval = claim.interval_s or young_s(claim.write_s, mtbf)
    found = ettr(interval_s=interval, write_s=claim.write_s, restart_s=claim.restart_s, mtbf_s=mtbf).value
    assert found == pytest.approx(claim.closed_form, abs=1e-4)
    assert found == pytest.approx(claim.published, abs=claim.tolerance)


@pytest.mark.parametrize("gpus, expected", [(2048, 0.960), (4096, 0.919)])
def test_rsc1_runs_of_up_to_4096_gpus_with_hourly_saves_stay_above_0_9(gpus: int, expected: float) -> None:
    """RSC: measured above 0.9."""
    mtbf = hardware_mtbf_s(6.5, gpus / 8)
    found = ettr(interval_s=HOUR, write_s=0, restart_s=5 * MINUTE, mtbf_s=mtbf).value
    assert found == pytest.approx(expected, abs=6e-4)
    assert found > 0.9


def test_hourly_saves_on_16k_gpus_are_outside_the_formula() -> None:
    """The formula gives 0.684; a third of the time would be lost work and restarts, so no number is given."""
    found = ettr(interval_s=HOUR, write_s=0, restart_s=300, mtbf_s=hardware_mtbf_s(6.5, 2000))
    assert not found.valid
    assert "32%" in str(found) and "simulate" in str(found)


def test_llama_3_s_90_percent_rule_out_saves_that_block_for_a_minute() -> None:
    """LLAMA3: above 90 % effective training time at 3.09 h between interruptions."""
    mtbf = mtbf_s(FAILURE_RATES["llama3-405b"], 2048).value
    assert mtbf / HOUR == pytest.approx(3.09, abs=0.005), LLAMA3
    short, long = (
        ettr(interval_s=young_s(write, mtbf), write_s=write, restart_s=restart, mtbf_s=mtbf).value
        for write, restart in ((10, 5 * MINUTE), (60, 10 * MINUTE))
    )
    assert short == pytest.approx(0.932, abs=6e-4) and short > 0.9
    assert long == pytest.approx(0.850, abs=6e-4) and long < 0.9


@pytest.mark.parametrize("stall_min, closed_form, published", [(10, 0.444, 0.44), (3, 0.833, 0.80)])
def test_ft_hsdp_s_failure_each_18_minutes(stall_min: float, closed_form: float, published: float) -> None:
    """FT-HSDP, arXiv 2602.00277: 44 % effective at stalls of 10 min, 80 % at 3 min."""
    found = runtime_goodput(between_s=(18 - stall_min) * MINUTE, reschedule_s=stall_min * MINUTE).value
    assert found == pytest.approx(closed_form, abs=1e-3)
    assert found == pytest.approx(published, abs=0.035)


def test_torchft_s_failure_each_minute_loses_one_step_of_six() -> None:
    """PyTorch blog of 2025-06-20: 5,145 of 6,249 steps; its own theory is 83.3 %."""
    found = runtime_goodput(between_s=60, lost_s=10).value
    assert found == pytest.approx(5 / 6)
    assert found == pytest.approx(5145 / 6249, abs=0.011)


@pytest.mark.parametrize(
    "rate, nodes, restart_s, expected", [(3.79, 2048, 30, 0.984), (6.5, 128, 60, 0.995)], ids=["16,384", "1,024"]
)
def test_our_best_case(rate: float, nodes: int, restart_s: float, expected: float) -> None:
    """Saves that cost 1 s; computed, nobody has published these."""
    mtbf = hardware_mtbf_s(rate, nodes)
    found = ettr(interval_s=young_s(1, mtbf), write_s=1, restart_s=restart_s, mtbf_s=mtbf).value
    assert found == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("name, hours", [("lablup-b200", 24 * 60 / 17), ("nebius", 56.6)])
def test_a_measured_cluster_s_hardware_rate_gives_back_its_time_between_failures(name: str, hours: float) -> None:
    rate = FAILURE_RATES[name]
    assert hardware_mtbf_s(1000 * rate.hardware_per_node_day, rate.nodes) / HOUR == pytest.approx(hours)


def test_a_formula_refuses_times_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="above 0"):
        ettr(interval_s=0, write_s=0, restart_s=0, mtbf_s=1)
    with pytest.raises(ValueError, match="lost time part of it"):
        runtime_goodput(between_s=10, lost_s=11)
