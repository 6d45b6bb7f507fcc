"""Any config that is accepted gives templates that pass: our rules for 25 random ones, cfn-lint for five of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.config import ConfigError, load_profile
from holdfast.config.fsx import EFA_SIZE_STEP_GIB, THROUGHPUTS
from holdfast.config.instances import CATALOG
from tests.infra.conftest import Synth
from tests.infra.rules.test_stacks import faults

LINTED = 5
EC2 = sorted(name for name, instance in CATALOG.items() if instance.ec2)


@st.composite
def storages(draw: Any, *, with_efa: bool) -> list[str]:
    """Settings of a file system that FSx sells."""
    options = [f"storage.fsx.compression={draw(st.sampled_from(['LZ4', 'NONE']))}"]
    options += [f"storage.fsx.s3_checkpoints={draw(st.booleans())}"]
    size = draw(st.sampled_from([1200, *range(2400, 24_001, 2400)]))
    if draw(st.booleans()):
        return [*options, "storage.deployment_type=SCRATCH_2", f"storage.capacity_gib={size}"]
    speed = draw(st.sampled_from(THROUGHPUTS))
    iops = draw(st.sampled_from(["null", "1500", "12000"]))
    efa = with_efa and draw(st.booleans())
    size = EFA_SIZE_STEP_GIB[speed] * draw(st.integers(1, 3)) if efa else size
    return [
        *options,
        "storage.deployment_type=PERSISTENT_2",
        f"storage.throughput_mbps_per_tib={speed}",
        f"storage.capacity_gib={size}",
        f"storage.fsx.metadata_iops={iops}",
        f"storage.fsx.efa={efa}",
    ]


@st.composite
def configs(draw: Any) -> list[str]:
    """Settings on top of the test profile: any node type, any way to buy it, any file system, any access."""
    kind = CATALOG[draw(st.sampled_from(EC2))]
    nodes, spares = draw(st.integers(1, 16)), draw(st.integers(0, 2))
    ranks = draw(st.integers(1, kind.gpus))
    letters = draw(st.lists(st.sampled_from("abcd"), min_size=2, max_size=3, unique=True))
    region = draw(st.sampled_from(["us-west-2", "us-east-1", "eu-north-1"]))
    zones = [f"{region}{letter}" for letter in letters]
    mode = draw(st.sampled_from(["on_demand", "reservation", "capacity_block"]))
    chosen = [
        f"cluster.instance_type={kind.name}",
        f"cluster.nodes={nodes}",
        f"cluster.ranks_per_node={ranks}",
        f"recovery.spares={spares}",
        "training.micro_batch_size=1",
        f"training.global_batch_size={nodes * ranks * draw(st.integers(1, 4))}",
        f"aws.region={region}",
        f"aws.zones=[{', '.join(zones)}]",
        f"aws.gpu_zone={draw(st.sampled_from(zones))}",
        f"aws.nic_layout={draw(st.sampled_from(['efa', 'ena']))}",
        f"aws.apply_manifests={draw(st.booleans())}",
        f"aws.capacity.mode={mode}",
        f"aws.capacity.desired_nodes={draw(st.integers(0, nodes + spares))}",
        f"aws.capacity.max_nodes={nodes + spares + draw(st.integers(0, 4))}",
    ]
    chosen += ["capacity_reservation_id=cr-0123456789abcdef0"] if mode != "on_demand" else []
    if draw(st.booleans()):
        chosen += ["aws.endpoint=allow_listed", "aws.allowed_cidrs=[203.0.113.0/24, 198.51.100.7/32]"]
    chosen += [f"aws.{draw(st.sampled_from(['production', 'allow_data_loss']))}=true"] if draw(st.booleans()) else []
    chosen += ["cost.expires_at=2027-06-30"] if draw(st.booleans()) else []
    files: list[str] = draw(storages(with_efa=kind.efa > 0))
    return chosen + files


def _accepted(chosen: list[str]) -> bool:
    try:
        load_profile("gpt2-g5x2", [setting for setting in chosen if not setting.startswith("capacity_")])
    except ConfigError:
        return False
    return True


@given(configs())
def test_most_random_settings_are_a_valid_config(chosen: list[str]) -> None:
    # Otherwise the test below would look at few of them.
    assert _accepted(chosen), chosen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_25_random_configs_pass_every_rule_and_cfn_lint_five_of_them(synth: Synth) -> None:
    folders: list[Path] = []

    @settings(
        max_examples=25,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
        derandomize=True,
    )
    @given(configs().filter(_accepted))
    def passes(chosen: list[str]) -> None:
        assembly = synth("gpt2-g5x2", *chosen)
        assert faults(assembly) == [], chosen
        folders.append(assembly.folder)

    passes()
    assert len(folders) >= 25
    templates = [str(path) for folder in folders[:: len(folders) // LINTED][:LINTED] for path in _templates(folder)]
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-i", "W3005", "--", *templates]
    linted = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert linted.returncode == 0, linted.stdout


def _templates(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.template.json"))
