"""cdk-outputs.json: used where it is, left out in one line where it is not, refused where half of it is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.conftest import IMAGE, OUTPUTS, Synth

Main = Callable[..., Synth]
P5 = "llama3-8b-p5x2"
STACK = f"{P5}-storage"


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    """k8s/main.py's main() in this process, a second faster each; test_main.py starts it as a user does."""
    from k8s.main import main as entry

    def run(dist: Path, environment: dict[str, str], cwd: Path | None = None) -> Synth:
        monkeypatch.chdir(cwd or dist)
        code = entry({"HOLDFAST_DIST": str(dist), **environment})
        out = capsys.readouterr()
        return Synth(dist / "k8s" / environment["HOLDFAST_PROFILE"] / "job", code, out.out, out.err, 0.0)

    return run


def written(folder: Path, content: Any) -> str:
    path = folder / "outputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_without_a_deployment_the_job_is_written_and_storage_is_left_out_in_one_line(
    main: Main, tmp_path: Path, synthesized: dict[str, Any]
) -> None:
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_SET": IMAGE}, cwd=tmp_path)
    assert synth.code == 0, synth.stderr
    assert synth.files == synthesized[P5].files
    storage = {"10-persistentvolume.yaml", "20-persistentvolumeclaim.yaml"}
    assert set(synth.platform_files) == set(synthesized[P5].platform_files) - storage
    (line,) = synth.stderr.splitlines()
    assert line.startswith("platform/ has no storage: there is no cdk-outputs.json here; `cdk deploy")
    assert "Storage is not among the files" in synth.platform_files["README.md"]


def test_the_outputs_of_another_deployment_are_named_and_not_used(main: Main, tmp_path: Path) -> None:
    path = written(tmp_path, {"gpt2-g5x2-storage": OUTPUTS})
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_SET": IMAGE, "HOLDFAST_OUTPUTS": path})
    assert synth.code == 0, synth.stderr
    assert synth.stderr == f"platform/ has no storage: {path} has no stack {STACK}, only gpt2-g5x2-storage\n"


def test_the_default_file_is_found_in_the_current_folder(main: Main, tmp_path: Path) -> None:
    (tmp_path / "cdk-outputs.json").write_text(json.dumps({STACK: OUTPUTS}))
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_SET": IMAGE}, cwd=tmp_path)
    assert (synth.code, synth.stderr) == (0, "")
    volume = yaml.safe_load(synth.platform_files["10-persistentvolume.yaml"])
    assert volume["spec"]["csi"]["volumeAttributes"]["mountname"] == OUTPUTS["FileSystemMountName"]


def test_a_profile_that_is_not_for_aws_reads_no_outputs(main: Main, tmp_path: Path) -> None:
    synth = main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_OUTPUTS": "/no/such/file"})
    assert (synth.code, synth.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {STACK: {key: OUTPUTS[key] for key in ("FileSystemId", "FileSystemDnsName")}},
            [f"{STACK}.FileSystemMountName"],
        ),
        ({STACK: {}}, [f"{STACK}.{key}" for key in OUTPUTS]),
        ({STACK: OUTPUTS | {"FileSystemId": "fs-${Token[TOKEN.3]}"}}, [f"{STACK}.FileSystemId", "Token"]),
        ({STACK: OUTPUTS | {"FileSystemMountName": ""}}, [f"{STACK}.FileSystemMountName", "''"]),
        ({STACK: "fs-1"}, ["HOLDFAST_OUTPUTS", "mapping"]),
        (
            {STACK: OUTPUTS, f"{P5}-gpu": {"CapacityEndsAt": "tomorrow"}},
            [f"{P5}-gpu.CapacityEndsAt", "'tomorrow'"],
        ),
        ("{", ["HOLDFAST_OUTPUTS", "not JSON"]),
        (None, ["HOLDFAST_OUTPUTS", "No such file"]),
    ],
    ids=["half", "none-of-three", "token", "empty", "no-moment", "no-mapping", "no-json", "no-file"],
)
def test_a_broken_file_is_refused_with_what_is_wrong_and_nothing_is_written(
    main: Main, tmp_path: Path, content: Any, expected: list[str]
) -> None:
    path = written(tmp_path, content) if content is not None else str(tmp_path / "nowhere.json")
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": path})
    assert synth.code == 2
    assert "Traceback" not in synth.stderr
    assert [word for word in expected if word not in synth.stderr] == []
    assert "cdk deploy" in synth.stderr or "Name a file" in synth.stderr
    assert not (tmp_path / "k8s").exists()


# the image


def test_the_local_image_is_warned_of_in_one_line_where_nodes_would_have_to_pull_it(
    main: Main, tmp_path: Path, deployed: Path
) -> None:
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": str(deployed)})
    assert synth.code == 0
    (line,) = synth.stderr.splitlines()
    assert line.startswith("image = 'holdfast-trainer:local': no node can pull it.")
    assert "@sha256:" in line


def test_an_image_that_is_not_pinned_is_refused_on_aws_and_accepted_elsewhere(main: Main, tmp_path: Path) -> None:
    change = {"HOLDFAST_SET": "image=registry.example/trainer:v1"}
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, **change}, cwd=tmp_path)
    assert synth.code == 2
    assert "image = 'registry.example/trainer:v1': its tag can be moved" in synth.stderr
    assert "@sha256:" in synth.stderr
    assert main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test", **change}).code == 0


@pytest.mark.parametrize("given", [None, IMAGE])
def test_the_image_of_the_deployment_stands_in_for_the_default_only(
    main: Main, tmp_path: Path, given: str | None
) -> None:
    pushed = f"1.dkr.ecr.us-west-2.amazonaws.com/assets:{'b' * 64}"
    path = written(tmp_path, {STACK: OUTPUTS, f"{P5}-cluster": {"TrainerImage": pushed}})
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": path, "HOLDFAST_SET": given or ""})
    assert (synth.code, synth.stderr) == (0, "")
    (config_map,) = (item for item in synth.objects if item["kind"] == "ConfigMap")
    image = yaml.safe_load(config_map["data"]["run.yaml"])["image"]
    assert image == (given.removeprefix("image=") if given else pushed)
    assert f"image: {image}" in synth.files["30-jobset.yaml"]


# the end of the capacity


@pytest.mark.parametrize("given", ["", "cluster.capacity_ends_at=2098-01-01T00:00:00Z"])
def test_the_end_of_a_capacity_block_goes_into_the_config_unless_it_has_one(
    main: Main, tmp_path: Path, given: str
) -> None:
    path = written(tmp_path, {STACK: OUTPUTS, f"{P5}-gpu": {"CapacityEndsAt": "2099-12-24T11:30:00Z"}})
    overrides = f"{IMAGE}\n{given}"
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": path, "HOLDFAST_SET": overrides})
    assert (synth.code, synth.stderr) == (0, "")
    (config_map,) = (item for item in synth.objects if item["kind"] == "ConfigMap")
    end = yaml.safe_load(config_map["data"]["run.yaml"])["cluster"]["capacity_ends_at"]
    assert end == (given.partition("=")[2] or "2099-12-24T11:30:00Z")


def test_a_capacity_block_that_is_over_is_warned_of(main: Main, tmp_path: Path) -> None:
    path = written(tmp_path, {STACK: OUTPUTS, f"{P5}-gpu": {"CapacityEndsAt": "2024-12-24T11:30:00Z"}})
    synth = main(tmp_path, {"HOLDFAST_PROFILE": P5, "HOLDFAST_OUTPUTS": path, "HOLDFAST_SET": IMAGE})
    assert synth.code == 0
    (line,) = synth.stderr.splitlines()
    assert line.startswith("cluster.capacity_ends_at = 2024-12-24T11:30:00+00:00: it is over, no pod will start")
