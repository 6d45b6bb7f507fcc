"""The Job that prepares data: what it runs, where, with which token, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from holdfast.config import ConfigError, RunConfig, load_profile
from k8s.main import use_bundled_node

C4 = "data.prepare=[{source: allenai/c4, to: data/c4-tokens, files: 'en/c4-train.*.json.gz'}]"
TOKENS = "data.path=[data/c4-tokens]"
PLANTED = "hf_plantedTokenThatMustNotBeSeen"


def jobs(config: RunConfig) -> list[dict[str, Any]]:
    use_bundled_node()
    from k8s.data_job import manifests

    return list(manifests(config).values())


@pytest.mark.parametrize("profile", ["llama3-8b-p5x2", "gpt2-g5x2", "cpu-test"])
def test_the_job_is_valid_kubernetes_and_runs_the_preparation_of_the_config(profile: str) -> None:
    config = load_profile(profile, [C4, TOKENS])
    (job,) = jobs(config)
    kubernetes_validate.validate(job, "1.35", strict=True)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    assert command[:6] == ["python", "-m", "trainer.data.prepare", "allenai/c4", "--to", "data/c4-tokens"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options["--tokenizer"] == config.data.tokenizer
    assert options["--storage"] == config.storage.mount_path
    assert options["--files"] == "en/c4-train.*.json.gz"
    assert pod.get("nodeSelector", {}) == ({"holdfast.dev/pool": "system"} if config.instance.ec2 else {})
    assert "nvidia.com/gpu" not in json.dumps(job)
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "emptyDir" not in volume]
    assert claims == [config.storage.claim]


def test_the_command_of_the_job_is_one_that_the_preparation_understands() -> None:
    from trainer.data.prepare.__main__ import _parser

    sets = [C4, TOKENS, "data.prepare.0.revision=main", "data.prepare.0.text_key=body", "data.prepare.0.workers=3"]
    (job,) = jobs(load_profile("cpu-test", sets))
    args = _parser().parse_args(job["spec"]["template"]["spec"]["containers"][0]["command"][3:])
    assert (args.source, args.to, args.storage) == ("allenai/c4", Path("data/c4-tokens"), Path("/fsx"))
    assert (args.revision, args.text_key, args.workers, args.json) == ("main", "body", 3, False)


def test_bad_input_fails_the_job_at_once_and_anything_else_is_tried_again_one_pod_at_a_time() -> None:
    (job,) = jobs(load_profile("cpu-test", [C4, TOKENS]))
    spec = job["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2]
    assert rule["onExitCodes"]["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    assert spec["backoffLimit"] > 1 and spec["podReplacementPolicy"] == "Failed" and spec["activeDeadlineSeconds"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_changed_preparation_has_another_name_and_each_has_one_of_its_own() -> None:
    two = [C4.replace("]", ", {source: raw, to: data/raw-tokens}]"), TOKENS]
    names = [job["metadata"]["name"] for job in jobs(load_profile("cpu-test", two))]
    assert len(set(names)) == 2 and all(len(name) <= 63 for name in names)
    (other,) = jobs(load_profile("cpu-test", [C4, TOKENS, "data.prepare.0.workers=3"]))
    assert other["metadata"]["name"] not in names


def test_the_token_comes_from_the_secret_and_stands_in_no_manifest(main: Callable[..., Any], tmp_path: Path) -> None:
    environment = {"HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_SET": f"{C4}\n{TOKENS}\ndata.token_secret=my-token"}
    synth = main(tmp_path, environment | {"HF_TOKEN": PLANTED})
    assert synth.code == 0, synth.stderr
    (file,) = (synth.folder.with_name("data")).iterdir()
    (job,) = yaml.safe_load_all(file.read_text())
    variables = {one["name"]: one for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    reference = {"name": "my-token", "key": "token", "optional": True}
    assert variables["HF_TOKEN"] == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert written and all(PLANTED not in text for text in [*written, synth.stdout, synth.stderr])
    training = (synth.folder / "30-jobset.yaml").read_text()
    assert "HF_TOKEN" not in training and "my-token" not in training
    main(tmp_path, {"HOLDFAST_PROFILE": "cpu-test"})
    assert not file.exists(), "without data.prepare its manifest is removed"


def test_a_token_in_the_place_of_the_secrets_name_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"data\.token_secret = 'hf_\*\*\*'") as caught:
        load_profile("cpu-test", [f"data.token_secret={PLANTED}"])
    assert PLANTED not in str(caught.value)
