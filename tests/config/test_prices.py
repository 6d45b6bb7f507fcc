"""The estimate covers what is deployed, says what it is, and its limit refuses."""

from __future__ import annotations

import pytest

from holdfast.commands.check import summary
from holdfast.config import load_profile, prices
from holdfast.config.fsx import THROUGHPUTS
from holdfast.config.instances import CATALOG


def test_every_node_type_that_can_be_ordered_has_a_price() -> None:
    missing = [name for name, instance in CATALOG.items() if instance.ec2 and name not in prices.NODE_HOURLY_USD]
    assert missing == []
    assert set(prices.LUSTRE_GB_MONTH_USD) == {None, *THROUGHPUTS}


def test_the_articles_two_nodes_cost_over_a_hundred_dollars_an_hour_and_none_at_deployment() -> None:
    config = load_profile("llama3-8b-p5x2")
    assert prices.full_size(config) == 2
    assert 105 < prices.estimate(config, 2).hourly_usd < 120
    assert prices.estimate(config, 0).hourly_usd < 1


def test_full_size_counts_the_spare_nodes_and_the_stated_limit() -> None:
    assert prices.full_size(load_profile("llama3-8b-p5x8")) == 9
    assert prices.full_size(load_profile("llama3-8b-p5x8", ["aws.capacity.max_nodes=12"])) == 12


def test_a_price_of_ones_own_replaces_the_estimate() -> None:
    config = load_profile("llama3-8b-p5x2", ["cost.node_hourly_usd=31.5", "cost.max_hourly_usd=64"])
    assert dict(prices.estimate(config, 2).parts)["2 x p5.48xlarge"] == 63


def test_the_parts_add_up_to_the_hour_and_hours_to_the_month() -> None:
    price = prices.estimate(load_profile("gpt2-g5x2"), 2)
    assert price.hourly_usd == pytest.approx(sum(usd for _, usd in price.parts))
    assert price.monthly_usd == pytest.approx(730 * price.hourly_usd)


def test_check_prints_both_sizes_with_the_date_and_the_word_estimate() -> None:
    texts = [text for name, text in summary(load_profile("llama3-8b-p5x2")) if name == "cost"]
    assert any("at deployment, 0 GPU nodes: $" in text for text in texts)
    assert any("at full size, 2 GPU nodes: $" in text and "a month" in text for text in texts)
    assert any("estimates of 20" in text for text in texts)


def test_a_local_profile_costs_nothing_and_says_nothing_about_cost() -> None:
    assert [name for name, _ in summary(load_profile("cpu-demo")) if name == "cost"] == []
