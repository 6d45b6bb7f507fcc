"""Each rule catches what it is there for, in a template that no other rule finds fault with."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infra.rules.assembly import MANIFEST, text_of
from infra.rules.catalog import RULES, findings
from tests.infra.rules import good as parts
from tests.infra.rules.breaking import BROKEN, Broken, capacity_block, data, nic
from tests.infra.rules.good import Templates, assembly, good


def found(templates: Templates) -> set[str]:
    return {rule.id for rule, _ in findings(assembly(templates))}


def test_the_good_templates_pass_every_rule() -> None:
    assert found(good()) == set()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.rule}: {broken.says}")
def test_a_broken_template_is_caught_by_its_rule_alone(broken: Broken) -> None:
    templates = good()
    broken.change(templates)
    results = list(findings(assembly(templates)))
    assert {rule.id for rule, _ in results} == {broken.rule}
    texts = [finding.wrong for _, finding in results]
    assert any(broken.says in text for text in texts), texts


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.rule}: {broken.says}")
def test_a_finding_names_the_place_the_reason_and_what_to_write(broken: Broken) -> None:
    templates = good()
    broken.change(templates)
    for _, finding in findings(assembly(templates)):
        assert finding.resource.path.startswith(finding.resource.stack)
        assert finding.why and finding.write and not finding.wrong.endswith(".")


def test_ids_count_up_and_every_rule_has_a_broken_template() -> None:
    ids = [rule.id for rule in RULES]
    assert ids == [f"HF{number:03}" for number in range(1, len(ids) + 1)]
    assert set(ids) == {broken.rule for broken in BROKEN}
    assert all(rule.title and rule.check.__doc__ for rule in RULES)


def test_a_complete_capacity_block_passes() -> None:
    templates = good()
    capacity_block(templates)
    assert found(templates) == set()


def test_a_reservation_on_demand_is_no_capacity_block() -> None:
    templates = good()
    target = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
    data(templates)["CapacityReservationSpecification"] = target
    del data(templates)["Placement"]
    assert found(templates) == set()


def test_an_ena_primary_with_33_interfaces_passes() -> None:
    templates = good()
    groups = [dict(parts.EFA_GROUP)]
    nics: list[dict[str, Any]] = [
        {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface", "Groups": [dict(parts.CLUSTER_GROUP)]},
        {"NetworkCardIndex": 0, "DeviceIndex": 1, "InterfaceType": "efa-only", "Groups": groups},
    ]
    nics += [
        {"NetworkCardIndex": card, "DeviceIndex": 0, "InterfaceType": "efa-only", "Groups": groups}
        for card in range(1, 32)
    ]
    data(templates)["NetworkInterfaces"] = nics
    assert len(nics) == 33 and found(templates) == set()


def test_references_are_followed_through_a_stack_output() -> None:
    templates = good()
    output = {"Fn::GetStackOutput": {"StackName": "Cluster", "OutputName": "Group"}}
    nic(templates, 0)["Groups"][0] = output
    assert found(templates) == set()


def test_a_manifest_of_unresolved_parts_is_still_read() -> None:
    volume = assembly(good()).of(MANIFEST)[1]
    assert '"volumeHandle": "<ref>"' in text_of(volume.properties["Manifest"])
    assert re.fullmatch(r"a<ref>", text_of({"Fn::Sub": "a${B.Arn}"}))
