"""The fault catalogue says something of every kind in every phase, and a config that asks for what is not possible is
refused with the catalogue's reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from bench import faults_page
from holdfast.config import ConfigError, load_profile
from holdfast.config.fault_catalogue import KINDS, PATH, PHASES, Incomplete, Row, catalogue, read
from holdfast.config.faults import OF_A_SAVE, Fault

ROWS = list(catalogue().rows())
ALLOWED = [row for row in ROWS if not row.refused]
ON_A_CPU = [row for row in ALLOWED if catalogue().entries[row.kind].device != "cuda"]
REFUSED = [row for row in ROWS if row.refused]


def _name(row: Row) -> str:
    return f"{row.kind}-{row.phase}"


def _config(*faults: dict[str, Any], sets: tuple[str, ...] = ()) -> Any:
    return load_profile("cpu-test", [*sets, f"faults={json.dumps(faults)}"])


def _fault(row: Row, **more: Any) -> dict[str, Any]:
    return {"kind": row.kind, "phase": row.phase, "step": 3, "rank": 0, **more}


def test_it_has_every_kind_in_every_phase() -> None:
    assert {(row.kind, row.phase) for row in ROWS} == {(kind, phase) for kind in KINDS for phase in PHASES}
    assert faults_page.counts() == f"{len(ALLOWED)} of {len(KINDS) * len(PHASES)} pairs of kind and phase are possible"


@pytest.mark.parametrize("row", REFUSED, ids=_name)
def test_a_refused_pair_is_refused_with_its_reason_and_the_phases_that_are_possible(row: Row) -> None:
    with pytest.raises(ConfigError) as refused:
        _config(_fault(row))
    (problem,) = refused.value.problems
    assert problem.key == "faults.0.phase" and problem.got == row.phase
    assert row.refused in problem.why
    possible = {other.phase for other in ALLOWED if other.kind == row.kind}
    assert possible and set(problem.fix.removeprefix("use ").split(", ")) == possible


@pytest.mark.parametrize("row", ALLOWED, ids=_name)
def test_an_allowed_pair_is_accepted_where_its_device_is_and_refused_elsewhere(row: Row) -> None:
    entry = catalogue().entries[row.kind]
    if entry.device == "cuda":
        with pytest.raises(ConfigError, match="needs a GPU, and device=cpu has none"):
            _config(_fault(row))
        load_profile("gpu-local", [f"faults={json.dumps([_fault(row)])}"])
    else:
        (fault,) = _config(_fault(row)).faults
        assert (fault.kind, fault.phase) == (row.kind, row.phase)


def test_a_partition_of_gpus_is_refused_with_the_command_that_does_it() -> None:
    fault = {"kind": "network_partition", "step": 3}
    with pytest.raises(ConfigError, match="aws ec2 modify-network-interface-attribute"):
        load_profile("gpu-local", [f"faults={json.dumps([fault])}"])


@pytest.mark.parametrize("row", [row for row in ON_A_CPU if row.phase in (*OF_A_SAVE, "restore")], ids=_name)
def test_without_checkpoints_no_fault_of_a_save_is_possible(row: Row) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.mode=off"):
        _config(_fault(row), sets=("checkpoint.mode=off",))


@pytest.mark.parametrize(
    ("fault", "sets", "says"),
    [
        ({"kind": "writer_death", "phase": "commit", "rank": 1}, (), "the commit is made by the writer of rank 0"),
        ({"kind": "slow_disk", "phase": "commit", "rank": 1}, (), "the commit is made by the writer of rank 0"),
        ({"kind": "dns_failure", "phase": "start_up"}, ("recovery.in_job=false",), "without recovery.in_job"),
        ({"kind": "writer_death"}, ("checkpoint.mode=off",), "checkpoint.mode=off"),
        ({"kind": "network_partition"}, ("cluster.nodes=1",), "one rank has no peer"),
    ],
)
def test_what_a_config_makes_impossible_is_refused(fault: dict[str, Any], sets: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _config({"step": 3, **fault}, sets=sets)


def test_the_same_kind_in_two_phases_of_one_step_is_two_faults_and_the_default_keeps_its_name() -> None:
    both = _config({"kind": "exception", "step": 3}, {"kind": "exception", "step": 3, "phase": "backward"}).faults
    assert [fault.id for fault in both] == ["exception-rank0-step3", "exception-rank0-step3-backward"]
    with pytest.raises(ConfigError, match="listed twice"):
        _config({"kind": "exception", "step": 3}, {"kind": "exception", "step": 3, "phase": "forward"})
    assert Fault(kind="hang", step=1).phase == "forward"


def test_every_limit_that_a_detector_names_is_a_limit_of_the_config() -> None:
    config = load_profile("cpu-test")
    for row in ALLOWED:
        for in_process in (True, False):
            key = catalogue().detectors[row.detected_by].limit(row.phase, in_process)
            assert key == "" or getattr(getattr(config, key.split(".")[0]), key.split(".")[1]) > 0
            assert (key == "") == (row.detected_by == "nobody")


def _without_a_phase(data: dict[str, Any]) -> None:
    data["kinds"]["hang"]["phases"].remove("stage")


def _both_ways(data: dict[str, Any]) -> None:
    data["kinds"]["hang"]["refused"] = {"stage": "for no reason"}


def _no_such_detector(data: dict[str, Any]) -> None:
    data["kinds"]["hang"]["detected_by"] = "luck"


def _no_such_end(data: dict[str, Any]) -> None:
    data["kinds"]["hang"]["by_phase"] = {"stage": {"end": "somehow"}}


def _unknown_kind(data: dict[str, Any]) -> None:
    data["kinds"]["meteor"] = data["kinds"]["hang"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_without_a_phase, r"hang: .* neither \['stage'\]"),
        (_both_ways, r"hang: allowed and refused \['stage'\]"),
        (_no_such_detector, "hang, start_up: .*luck"),
        (_no_such_end, "hang, stage: .*somehow"),
        (_unknown_kind, "kinds: .*meteor"),
    ],
)
def test_a_catalogue_that_leaves_something_open_is_not_read(spoil: Any, says: str) -> None:
    data = yaml.safe_load(PATH.read_text())
    spoil(data)
    with pytest.raises(Incomplete, match=says):
        read(data)


def test_the_tables_have_a_line_for_each_kind_and_each_reason() -> None:
    kinds = faults_page.kinds_table().splitlines()
    assert len(kinds) == 2 + len(KINDS)
    hang = next(line for line in kinds if line.startswith("| `hang` |"))
    assert hang.count("| yes ") == 9 and "silent" in hang and "bit_equal" in hang
    loss = next(line for line in kinds if line.startswith("| `nan_loss` |"))
    assert loss.count("| yes ") == 1 and loss.count("| no ") == 8
    refusals = faults_page.refusals_table()
    assert all(" ".join(row.refused.split()) in refusals for row in REFUSED)
    assert len({line.count("|") for line in kinds}) == 1
    assert len(faults_page.phases_table().splitlines()) == 2 + len(PHASES)
    assert len(faults_page.detectors_table().splitlines()) == 2 + len(catalogue().detectors)
