"""The rules act within a real synthesis: it fails, and the report names rule, construct, reason and remedy."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx

from infra.rules.catalog import RULES
from infra.rules.plugin import HoldfastRules
from infra.rules.reading import read_assembly


@pytest.fixture(autouse=True)
def no_builtin_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDK_VALIDATION", "false")


def app_with(tmp_path: Path, version: str | None) -> cdk.App:
    """One stack with a file system of that Lustre version."""
    app = cdk.App(outdir=str(tmp_path / "out"), analytics_reporting=False)
    stack = cdk.Stack(app, "Storage")
    group = ec2.CfnSecurityGroup(stack, "Group", group_description="Lustre", vpc_id="vpc-1")
    for low, high in ((988, 988), (1018, 1023)):
        ec2.CfnSecurityGroupIngress(
            stack,
            f"Own{low}",
            group_id=group.attr_group_id,
            ip_protocol="tcp",
            from_port=low,
            to_port=high,
            source_security_group_id=group.attr_group_id,
        )
    lustre = fsx.CfnFileSystem.LustreConfigurationProperty(deployment_type="SCRATCH_2")
    files = fsx.CfnFileSystem(
        stack,
        "Files",
        file_system_type="LUSTRE",
        file_system_type_version=version,
        storage_capacity=1200,
        subnet_ids=["subnet-1"],
        security_group_ids=[group.attr_group_id],
        lustre_configuration=lustre,
    )
    files.apply_removal_policy(cdk.RemovalPolicy.RETAIN)
    cdk.Tags.of(app).add("Project", "demo")
    cdk.Tags.of(app).add("Owner", "me")
    cdk.Validations.of(app).add_plugins(HoldfastRules())
    return app


def test_a_finding_fails_the_synthesis_and_is_reported_with_rule_path_and_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError) as failure:
        app_with(tmp_path, "2.12").synth()
    report = str(failure.value) + "".join(capfd.readouterr())
    assert "HF025" in report
    assert "Storage/Files" in report
    assert "FileSystemTypeVersion is 2.12" in report
    assert 'FileSystemTypeVersion: "2.15"' in report


def test_what_the_report_does_not_name_is_not_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as failure:
        app_with(tmp_path, None).synth()
    report = str(failure.value) + "".join(capfd.readouterr())
    named = {rule.id for rule in RULES if rule.id in report}
    # The ports are closed to nodes (there are none here) and do not open before the file system.
    assert named == {"HF025", "HF029", "HF030"}


def test_an_override_is_judged_although_the_construct_was_right(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app = app_with(tmp_path, "2.15")
    files = app.node.find_child("Storage").node.find_child("Files")
    assert isinstance(files, fsx.CfnFileSystem)
    files.add_property_override("FileSystemTypeVersion", "2.10")
    with pytest.raises(RuntimeError) as failure:
        app.synth()
    assert "FileSystemTypeVersion is 2.10" in str(failure.value) + "".join(capfd.readouterr())


def test_a_clean_app_passes(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path / "out"), analytics_reporting=False)
    vpc = ec2.CfnVPC(cdk.Stack(app, "Network"), "Vpc", cidr_block="10.0.0.0/16")
    cdk.Tags.of(vpc).add("Project", "demo")
    cdk.Tags.of(vpc).add("Owner", "me")
    cdk.Validations.of(app).add_plugins(HoldfastRules())
    app.synth()
    (path,) = (tmp_path / "out").glob("*.template.json")
    assert [resource.type for resource in read_assembly([path]).resources.values()] == ["AWS::EC2::VPC"]
