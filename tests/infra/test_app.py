"""app.py as the CDK's command line starts it: templates, or one message, exit code 2 and no stack trace."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from app import synthesize
from tests.infra.assembly import Assembly
from tests.infra.conftest import PROFILES

ROOT = Path(__file__).parents[2]
NO_AWS = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent", "PATH": "/usr/bin:/bin"}
"""No credentials, no docker, no Node of the machine's own."""


def run(folder: Path, context: dict[str, Any], *program: str, profile: str = "") -> subprocess.CompletedProcess[str]:
    """Run app.py (or another program beside it) in an empty folder with the CLI's way of giving context."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_", "HOLDFAST_", "PYTEST_"))
    }
    environment |= {**NO_AWS, "CDK_VALIDATION": "false", "CDK_OUTDIR": str(folder / "cdk.out")}
    environment |= {"HOLDFAST_PROFILE": profile, "HOLDFAST_DIST": str(folder / "dist")}
    environment["CDK_CONTEXT_JSON"] = json.dumps({"aws:cdk:disable-asset-staging": True, **context})
    command = [sys.executable, *(program or (str(ROOT / "app.py"),))]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_it_passes_our_rules_and_cdk_nag(tmp_path: Path, profile: str, assemblies: dict[str, Assembly]) -> None:
    done = run(tmp_path, {"profile": profile})
    assert (done.returncode, done.stdout) == (0, "")
    assert "GPU nodes: $" in done.stderr and "estimate" in done.stderr and "WARN" not in done.stderr
    wanted = assemblies[profile]
    assert Assembly(tmp_path / "cdk.out", wanted.config).templates == wanted.templates, "same as in this process"


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(
            {
                "profile": "llama3-8b-p5x8",
                "storage.fsx.s3_checkpoints": True,
                "storage.fsx.efa": True,
                "aws.allow_data_loss": True,
                "aws.nic_layout": "ena",
                "aws.endpoint": "allow_listed",
                "aws.allowed_cidrs": ["203.0.113.0/24"],
                "cost.monthly_budget_usd": 4000,
                "budget_email": "ada@example.com",
            },
            id="everything on",
        ),
        pytest.param(
            {
                "aws.production": True,
                "aws.apply_manifests": False,
                "admin_role_arn": "arn:aws:iam::111122223333:role/Admin",
                "aws.capacity.mode": "capacity_block",
                "capacity_reservation_id": "cr-0123456789abcdef0",
                "capacity_ends_at": "2026-12-24T11:30:00Z",
            },
            id="strict, with a capacity block",
        ),
    ],
)
def test_options_pass_our_rules_and_cdk_nag_too(tmp_path: Path, context: dict[str, Any]) -> None:
    synthesize({"aws:cdk:disable-asset-staging": True, **context}, outdir=str(tmp_path), cdk_validator=False)
    assert list(tmp_path.glob("*.template.json"))


def test_templates_and_manifests_of_a_profile_take_at_most_six_seconds_of_work(tmp_path: Path) -> None:
    """In seconds of CPU, Node's included: the clock on the wall depends on who else is at work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(tmp_path, {})
    k8s = run(tmp_path, {}, str(ROOT / "k8s" / "main.py"), profile=PROFILES[0])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, k8s.returncode) == (0, 0), k8s.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 6


def test_bad_context_ends_with_one_message_and_code_2(tmp_path: Path) -> None:
    done = run(tmp_path, {"profile": "cpu-demo", "colour": "red", "cluster.nodes": "-2"})
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("CDK context, profile cpu-demo: 2 problems\n")
    assert not list((tmp_path / "cdk.out").glob("*.json"))


def test_a_template_that_breaks_a_rule_ends_with_its_id_and_code_2(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(ROOT)!r})
            import app
            build = app.build
            def broken(tree, config, deployment):
                build(tree, config, deployment)
                system = tree.node.find_child("Storage").node.find_child("FileSystem").node.find_child("Resource")
                system.add_property_deletion_override("FileSystemTypeVersion")
            app.build = broken
            sys.exit(app.main())
        """)
    )
    done = run(tmp_path, {}, str(program))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    report = done.stdout + done.stderr
    assert "HF0" in report and "2.15" in report and "Storage/FileSystem/Resource" in report


def test_cdk_json_starts_this_file_and_reports_nothing_to_anybody() -> None:
    text = json.loads((ROOT / "cdk.json").read_text())
    assert text["app"].endswith("bin/python app.py") and text["versionReporting"] is False
    assert text["context"]["cli-telemetry"] is False
    assert text["context"]["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
    assert not [key for key in text["context"] if key.startswith("aws:")], "the CLI keeps these keys for itself"


def test_no_template_looks_anything_up(assembly: Assembly) -> None:
    manifest = json.loads((assembly.folder / "manifest.json").read_text())
    assert "missing" not in manifest
    environments = {a["environment"] for a in manifest["artifacts"].values() if "environment" in a}
    assert environments == {"aws://unknown-account/us-west-2"}
    assert "dummy1a" not in json.dumps(assembly.templates)
