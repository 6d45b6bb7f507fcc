"""k8s/main.py as a user runs it: fast, offline, repeatable, and clear about bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config import dump, load_profile, profile_names, validate
from k8s.main import ROOT
from tests.k8s.conftest import IMAGE

Main = Callable[..., Any]
P5 = "llama3-8b-p5x2"
FILES = [
    "10-configmap.yaml",
    "10-networkpolicy.yaml",
    "20-poddisruptionbudget-control.yaml",
    "20-poddisruptionbudget-workers.yaml",
    "30-jobset.yaml",
]
SPACE = ["00-namespace.yaml", "00-priorityclass.yaml", "10-networkpolicy.yaml", "10-serviceaccount.yaml", "README.md"]
PLATFORM = [
    "00-namespace.yaml",
    "00-priorityclass.yaml",
    "10-networkpolicy.yaml",
    "10-persistentvolume.yaml",
    "10-serviceaccount.yaml",
    "20-efa-device-plugin.yaml",
    "20-nvidia-device-plugin.yaml",
    "20-persistentvolumeclaim.yaml",
    "README.md",
]


def platform_files(profile: str) -> list[str]:
    """What platform/ must hold after a deployment."""
    instance = load_profile(profile).instance
    without_efa = [name for name in PLATFORM if "efa" not in name]
    return (PLATFORM if instance.efa else without_efa) if instance.ec2 else SPACE


@pytest.mark.parametrize("profile", profile_names())
def test_each_object_has_a_file_of_its_own_with_a_stable_name(synthesized: dict[str, Any], profile: str) -> None:
    synth = synthesized[profile]
    assert list(synth.files) == FILES
    assert list(synth.platform_files) == platform_files(profile)
    texts = {**synth.files, **{name: text for name, text in synth.platform_files.items() if name != "README.md"}}
    assert all(len(list(yaml.safe_load_all(text))) == 1 for text in texts.values())


@pytest.mark.parametrize("profile", profile_names())
def test_standard_output_is_one_path_per_file_and_nothing_is_complained_about(
    synthesized: dict[str, Any], profile: str
) -> None:
    synth = synthesized[profile]
    platform = [str(synth.platform / name) for name in platform_files(profile)]
    assert synth.stdout.splitlines() == platform + [str(synth.folder / name) for name in FILES]
    assert synth.stderr == ""


def test_a_second_synthesis_writes_the_same_bytes_in_under_five_seconds(
    synthesized: dict[str, Any], main: Main, tmp_path: Path, deployed: Path
) -> None:
    again = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": str(deployed), "HOLDFAST_SET": IMAGE})
    assert again.files == synthesized[P5].files
    assert again.platform_files == synthesized[P5].platform_files
    assert again.seconds < 5


def test_synthesis_needs_no_network(main: Main, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), nowhere)
    assert main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test", **proxies}).code == 0


@pytest.mark.parametrize("profile", profile_names())
def test_the_config_map_carries_the_whole_config(synthesized: dict[str, Any], profile: str) -> None:
    (config_map,) = (item for item in synthesized[profile].objects if item["kind"] == "ConfigMap")
    assert config_map["immutable"] is True
    text = config_map["data"]["run.yaml"]
    config = load_profile(profile, [IMAGE])
    assert text == dump(config)
    assert validate(yaml.safe_load(text), source="run.yaml") == config


@pytest.mark.parametrize("profile", profile_names())
def test_no_file_holds_a_token_or_a_number_that_stands_for_one(synthesized: dict[str, Any], profile: str) -> None:
    for text in [*synthesized[profile].files.values(), *synthesized[profile].platform_files.values()]:
        assert "${Token[" not in text
        assert "e+289" not in text


def test_files_of_a_former_synthesis_are_removed(main: Main, tmp_path: Path) -> None:
    folder = tmp_path / "k8s" / "cpu-test" / "job"
    folder.mkdir(parents=True)
    (folder / "40-service.yaml").write_text("kind: Service\n")
    (folder / "notes.txt").write_text("mine")
    synth = main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test"})
    assert list(synth.files) == [*FILES, "notes.txt"]


def test_it_runs_from_any_folder_with_a_profile_of_ones_own(main: Main, tmp_path: Path) -> None:
    text = (ROOT / "holdfast" / "config" / "profiles" / "cpu-test.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("name: cpu-test", "name: mine"))
    synth = main(tmp_path / "out", {"HOLDFAST_PROFILE": "mine.yaml"}, cwd=tmp_path)
    assert synth.code == 0, synth.stderr
    assert synth.folder == tmp_path / "out" / "k8s" / "mine" / "job"
    assert synth.stdout.splitlines()[-1] == os.path.join("out", "k8s", "mine", "job", FILES[-1])


def test_under_the_cdk8s_cli_it_writes_where_the_cli_looks(main: Main, tmp_path: Path) -> None:
    # The CLI sets CDK8S_OUTDIR, relative to its own folder.
    outside = {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_DIST": "", "CDK8S_OUTDIR": "there"}
    synth = main(tmp_path, outside, cwd=tmp_path)
    assert synth.code == 0, synth.stderr
    assert sorted(path.name for path in (tmp_path / "there" / "cpu-test" / "job").iterdir()) == FILES


def test_the_cdk8s_cli_is_told_of_this_program_and_empties_no_more_than_its_own_folder() -> None:
    entry = yaml.safe_load((ROOT / "cdk8s.yaml").read_text())
    assert entry == {"language": "python", "app": "python k8s/main.py", "output": "dist/k8s"}


def test_overrides_are_one_per_line_and_parsed_by_type(main: Main, tmp_path: Path) -> None:
    changes = "recovery.spares=2\n\n  training.steps=77  \ncheckpoint.mode=sync\n"
    synth = main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": changes})
    (config_map,) = (item for item in synth.objects if item["kind"] == "ConfigMap")
    config = yaml.safe_load(config_map["data"]["run.yaml"])
    assert (config["recovery"]["spares"], config["training"]["steps"], config["checkpoint"]["mode"]) == (2, 77, "sync")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["HOLDFAST_PROFILE", *profile_names()]),
        ({"HOLDFAST_PROFILE": "cpu-dmeo"}, ["cpu-dmeo", *profile_names()]),
        ({"HOLDFAST_PROFILE": "no/such.yaml"}, ["no/such.yaml"]),
        ({"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": "training.stepz=3"}, ["training.stepz", "steps"]),
        ({"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": "training.steps"}, ["training.steps", "key=value"]),
        (
            {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": "training.steps=0\nrecovery.spares=maybe"},
            ["training.steps", "recovery.spares", "maybe"],
        ),
        ({"HOLDFAST_PROFILE": "cpu-test", "JSII_NODE": "/no/node"}, ["JSII_NODE", "/no/node", "Node.js"]),
        ({"HOLDFAST_PROFILE": "llama3-8b-p5x2", "HOLDFAST_SET": "model.layers=400"}, ["cluster.nodes=2"]),
    ],
    ids=["none", "unknown", "no-file", "unknown-key", "no-value", "two-problems", "no-node", "too-large"],
)
def test_bad_input_ends_with_code_2_and_a_message_and_writes_nothing(
    main: Main, tmp_path: Path, environment: dict[str, str], expected: list[str]
) -> None:
    synth = main(tmp_path, environment)
    assert synth.code == 2
    assert synth.stdout == ""
    assert "Traceback" not in synth.stderr
    assert [word for word in expected if word not in synth.stderr] == []
    assert not (tmp_path / "k8s").exists()


def test_a_python_without_our_packages_is_told_which_one_to_use() -> None:
    bare = [sys.executable, "-S", str(ROOT / "k8s" / "main.py")]  # -S: no site-packages
    done = subprocess.run(bare, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("lacks pydantic, yaml, cdk8s: run `make venv`, then use .venv/bin/python\n")


def test_an_output_folder_that_cannot_be_written_is_named(main: Main, tmp_path: Path) -> None:
    (tmp_path / "k8s").write_text("a file where a folder is wanted")
    synth = main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test"})
    assert synth.code == 2
    assert "HOLDFAST_DIST" in synth.stderr
    assert "Traceback" not in synth.stderr
