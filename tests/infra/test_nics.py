"""Network interfaces of every node type in both layouts (case-20): which slots, which kinds, which groups."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.config.instances import CATALOG, Instance
from infra.nics import Layout, Nic, interfaces
from tests.infra.assembly import Assembly
from tests.infra.conftest import Synth

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ON_EC2 = [instance for instance in CATALOG.values() if instance.ec2]
WITH_EFA = [instance for instance in ON_EC2 if instance.efa]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("instance", ON_EC2, ids=lambda instance: instance.name)
def test_each_slot_of_a_card_is_used_once_and_exists(instance: Instance, layout: Layout) -> None:
    slots = [(nic.card, nic.device) for nic in interfaces(instance, layout)]
    assert len(slots) == len(set(slots))
    assert {card for card, _ in slots} <= set(range(instance.network_cards))
    assert {device for _, device in slots} <= {0, 1}, "a card takes two interfaces"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("instance", ON_EC2, ids=lambda instance: instance.name)
def test_a_node_has_as_many_efa_devices_as_its_pod_asks_for(instance: Instance, layout: Layout) -> None:
    assert sum(nic.is_efa for nic in interfaces(instance, layout)) == instance.efa


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("instance", ON_EC2, ids=lambda instance: instance.name)
def test_the_primary_comes_first_and_has_an_address(instance: Instance, layout: Layout) -> None:
    first, *others = interfaces(instance, layout)
    assert (first.card, first.device) == (0, 0) and first.kind != "efa-only"
    assert {nic.kind for nic in others} <= {"efa-only"}, "any other kind would take an address from the subnet"


def test_the_layout_efa_counts_cards_and_not_devices() -> None:
    found = interfaces(CATALOG["p5.48xlarge"], "efa")
    assert found == [Nic(card=0, device=0, kind="efa")] + [
        Nic(card=card, device=1, kind="efa-only") for card in range(1, 32)
    ]


def test_the_layout_ena_uses_both_slots_of_the_first_card() -> None:
    found = interfaces(CATALOG["p5.48xlarge"], "ena")
    assert found[:2] == [Nic(card=0, device=0, kind="interface"), Nic(card=0, device=1, kind="efa-only")]
    assert found[2:] == [Nic(card=card, device=0, kind="efa-only") for card in range(1, 32)]


@pytest.mark.parametrize(("layout", "first"), [("efa", "interface"), ("ena", "interface")])
def test_a_first_card_without_efa_stays_an_ordinary_one(layout: Layout, first: str) -> None:
    instance = Instance(name="x", gpus=8, efa=16, network_cards=17, card0_efa=False, memory_gib=1, shm_gib=1, cpus=1,
                        source="invented, like p6-b300")  # fmt: skip
    found = interfaces(instance, layout)
    assert found[0].kind == first and {nic.card for nic in found if nic.is_efa} == set(range(1, 17))


def test_the_template_of_p5_has_32_efa_devices_on_32_cards(p5: Assembly) -> None:
    nics = p5.launch_data["NetworkInterfaces"]
    assert [nic["NetworkCardIndex"] for nic in nics] == list(range(32))
    assert [nic["DeviceIndex"] for nic in nics] == [0] + [1] * 31
    assert [nic["InterfaceType"] for nic in nics] == ["efa"] + ["efa-only"] * 31


def test_the_template_of_p5_has_33_interfaces_by_the_other_layout(synth: Synth) -> None:
    nics = synth("llama3-8b-p5x2", "aws.nic_layout=ena", "aws.apply_manifests=false").launch_data["NetworkInterfaces"]
    slots = [(nic["NetworkCardIndex"], nic["DeviceIndex"]) for nic in nics]
    assert slots == [(0, 0), (0, 1), *((card, 0) for card in range(1, 32))]
    assert [nic["InterfaceType"] for nic in nics] == ["interface"] + ["efa-only"] * 32


def test_groups_stand_on_each_interface_and_nowhere_else(assembly: Assembly) -> None:
    data = assembly.launch_data
    assert "SecurityGroupIds" not in data and "SecurityGroups" not in data
    for nic in data["NetworkInterfaces"]:
        assert nic["Groups"]
        assert not {"SubnetId", "AssociatePublicIpAddress", "NetworkInterfaceId"} & set(nic)


def test_only_the_primary_is_in_the_clusters_group_and_all_efa_in_ours(p5: Assembly) -> None:
    (efa_group,) = p5.all("Gpu", "AWS::EC2::SecurityGroup")
    ours = {"Fn::GetAtt": [efa_group, "GroupId"]}
    first, *others = p5.launch_data["NetworkInterfaces"]
    assert p5.target("Gpu", first["Groups"][0]).stack == "Cluster" and first["Groups"][1:] == [ours]
    assert all(nic["Groups"] == [ours] for nic in others)


def test_members_of_the_efa_group_reach_each_other_both_ways(p5: Assembly) -> None:
    (name,) = p5.all("Gpu", "AWS::EC2::SecurityGroup")
    own = {"Fn::GetAtt": [name, "GroupId"]}
    into, out = p5.one("Gpu", "AWS::EC2::SecurityGroupIngress"), p5.one("Gpu", "AWS::EC2::SecurityGroupEgress")
    assert into == {"GroupId": own, "SourceSecurityGroupId": own, "IpProtocol": "-1"}
    assert out == {"GroupId": own, "DestinationSecurityGroupId": own, "IpProtocol": "-1"}


def test_a_type_without_efa_has_one_interface_and_no_group_of_ours(assemblies: dict[str, Assembly]) -> None:
    g5 = assemblies["gpt2-g5x2"]
    (nic,) = g5.launch_data["NetworkInterfaces"]
    assert nic["InterfaceType"] == "interface" and g5.target("Gpu", nic["Groups"][0]).stack == "Cluster"
    assert not g5.all("Gpu", "AWS::EC2::SecurityGroup")


@pytest.mark.parametrize("instance", WITH_EFA, ids=lambda instance: instance.name)
def test_facts_of_the_catalog_fit_together(instance: Instance) -> None:
    assert instance.efa <= instance.network_cards - (not instance.card0_efa)
    assert instance.hugepages_mib > 0 and instance.source
