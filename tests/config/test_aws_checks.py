"""What is judged only where it is paid for, and the sizes of case-24."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import ConfigError, data, load_profile, prices


@pytest.mark.parametrize("profile", ["cpu-demo", "gpu-local"])
def test_the_cluster_is_not_judged_for_a_node_that_is_not_ec2s(profile: str) -> None:
    load_profile(profile, ["aws.gpu_zone=eu-west-1c", "cost.max_hourly_usd=1", "training.expected_step_s=null"])


def test_only_on_demand_nodes_are_put_into_a_placement_group_unless_asked() -> None:
    modes = ("on_demand", "reservation", "capacity_block")
    capacities = [load_profile("llama3-8b-p5x2", [f"aws.capacity.mode={mode}"]).aws.capacity for mode in modes]
    assert [capacity.placement_group for capacity in capacities] == [True, False, False]


@pytest.mark.parametrize("kind", list(prices.SYSTEM_HOURLY_USD))
def test_as_many_workers_as_a_preparation_may_have_fit_on_a_system_node(kind: str) -> None:
    most = prices.SYSTEM_CORES[kind] - 1
    overrides = [f"aws.system_instance_type={kind}", "data.prepare=[{source: a, to: b, workers: WORKERS}]"]
    load_profile("llama3-8b-p5x2", [text.replace("WORKERS", str(most)) for text in overrides])
    with pytest.raises(
        ConfigError,
        match=rf"data\.prepare\.0\.workers = {most + 1}: .*aws\.system_instance_type={kind} has .* at most {most}",
    ):
        load_profile("llama3-8b-p5x2", [text.replace("WORKERS", str(most + 1)) for text in overrides])
    kept_back_mib = 3072  # of the system: reserved by EKS, and the agents of every node
    fits = prices.SYSTEM_CORES[kind] * 4096 - kept_back_mib
    assert data.PREPARE_MEMORY_MIB + data.PREPARE_MEMORY_PER_WORKER_MIB * most <= fits


def test_workers_are_not_judged_where_the_node_is_not_ec2s() -> None:
    load_profile("cpu-test", ["data.prepare=[{source: a, to: b, workers: 256}]"])


@pytest.mark.parametrize("size, speed", [(1200, 125), (4800, 1000)])
def test_a_size_and_throughput_that_aws_offers_is_accepted(size: int, speed: int) -> None:
    storage = f"storage={{deployment_type: PERSISTENT_2, capacity_gib: {size}, throughput_mbps_per_tib: {speed}}}"
    load_profile("gpt2-g5x2", [storage])


@pytest.mark.parametrize(
    "size, speed, key",
    [
        (1300, 125, "storage.capacity_gib"),
        (3600, 250, "storage.capacity_gib"),
        (1200, 100, "storage.throughput_mbps_per_tib"),
        (1200, None, "storage.throughput_mbps_per_tib"),
        (-1, 125, "storage.capacity_gib"),
        ("abc", 125, "storage.capacity_gib"),
    ],
)
def test_a_size_and_throughput_that_aws_does_not_offer_is_refused_with_its_key(size: Any, speed: Any, key: str) -> None:
    overrides = ["storage.deployment_type=PERSISTENT_2", f"storage.capacity_gib={size}"]
    overrides += [f"storage.throughput_mbps_per_tib={speed}"] if speed else []
    with pytest.raises(ConfigError) as refusal:
        load_profile("gpt2-g5x2", overrides)
    assert [problem.key for problem in refusal.value.problems] == [key]
