"""What the planner computes for the article's cluster: nothing here is measured on it. Llama-3.1-8B on 2 to 8 nodes of
p5.48xlarge with FSx for Lustre SCRATCH_2 of 1.2 TB, as profile llama3-8b-p5x2 has it."""

from __future__ import annotations

from dataclasses import replace

from bench.article_page import Table
from holdfast.config import RunConfig, load_profile
from holdfast.config.failure_rates import FAILURE_RATES, FailureRate
from holdfast.config.fsx import tier_of
from holdfast.config.sizing import checkpoint_bytes
from holdfast.goodput.planner import Setting, configured, default_inputs
from holdfast.goodput.planner.judge import judge

PROFILE = "llama3-8b-p5x2"
NODES = (2, 4, 8)
DAY_S = 86400.0
ARTICLE_FAULTS, ARTICLE_STEPS, ARTICLE_STEP_S = 5, 2000, 0.4
"""Five faults in a run of 2000 steps, of 0.37 to 0.42 s by its own numbers."""
ARTICLE = FailureRate(
    name="article",
    hardware_per_node_day=0.0,
    software_per_node_day=ARTICLE_FAULTS / (ARTICLE_STEPS * ARTICLE_STEP_S / DAY_S) / 2,
    nodes=2,
    source="5 faults in 2,000 steps of 0.4 s on 2 nodes, all of them of a rank's process (computed)",
)
H100 = FAILURE_RATES["llama3-405b"]
INTERVAL, LOCAL = 1000, 100
"""Steps: the article's interval for its table of efficiencies, and one for saves on the nodes' own disks."""
COLUMNS = (
    "<nodes", "<no faults, waiting for each write", "<no faults, ours", "<Llama 3's failures, ours",
    "<with local saves", "<the article's faults, with local saves",
)  # fmt: skip


def projection(table: Table) -> str:
    """A paragraph and the table. Computed anew each time, by closed forms or by simulations with fixed seeds."""
    config = load_profile(PROFILE)
    size, tier = checkpoint_bytes(config), tier_of(config)
    write_s, work_s = size / tier.bytes_per_s, INTERVAL * _step_s(config)
    apart_s = ARTICLE_STEPS * ARTICLE_STEP_S / ARTICLE_FAULTS
    said = (
        f"**Computed, not measured** (`holdfast plan --profile {PROFILE} --nodes 2..8` for more): {size / 1e9:.0f} GB "
        f"of float32 weights and moments at the {tier.bytes_per_s / 1e6:.0f} MB/s that AWS promises for this file "
        f"system take {write_s:.0f} s, however many nodes there are, and {INTERVAL:,} steps of {_step_s(config):g} s "
        f"take {work_s:.0f} s. The goodput of a long job with a save every {INTERVAL:,} steps to the shared file "
        f"system, and with local saves every {LOCAL} steps to the nodes' own disks beside it. Llama 3's failures: the "
        f"published rate of its H100s (preset {H100.name}), times these nodes. The article's faults: one every "
        f"{apart_s:.0f} s, which no cluster has."
    )
    limits = (
        "Each node works as in the profile, on the same model in the same step time: more nodes are a larger batch. *: "
        "the mean of simulated runs, where the closed form has no number. EFA, FSx and more than 2 GPUs were not at "
        "hand; what measures it on a cluster is `holdfast report`."
    )
    return "\n\n".join([said, table(COLUMNS, [_row(config, nodes) for nodes in NODES]), limits])


def _row(config: RunConfig, nodes: int) -> list[str]:
    waiting = load_profile(PROFILE, ["checkpoint.mode=sync"])
    none = FAILURE_RATES["none"]
    return [
        str(nodes),
        goodput(waiting, nodes, none),
        goodput(config, nodes, none),
        goodput(config, nodes, H100),
        goodput(config, nodes, H100, local=LOCAL),
        goodput(config, nodes, ARTICLE, local=LOCAL),
    ]


def goodput(config: RunConfig, nodes: int, rate: FailureRate, local: int | None = None) -> str:
    """In words: a share, `*` where it was simulated, or a dash where the model gives none."""
    setting = Setting(config=config, nodes=nodes, rate=rate, inputs=default_inputs(config, nodes))
    found = judge(setting, replace(configured(setting), shared_steps=INTERVAL, local_steps=local))
    if found.goodput is None:
        return "-"
    return f"{found.goodput:.1%}" + "*" * (found.how == "simulated")


def _step_s(config: RunConfig) -> float:
    return default_inputs(config, NODES[0])["step_s"]
