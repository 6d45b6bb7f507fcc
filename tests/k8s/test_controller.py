"""The JobSet controller: one Helm release, in CDK and by hand."""

from __future__ import annotations

import inspect
import json
import shlex
from pathlib import Path
from typing import Any

from holdfast.config import load_profile


def test_the_helm_release_is_plain_data_under_the_names_of_cdks_helm_chart() -> None:
    from aws_cdk import aws_eks_v2

    from k8s.platform import helm_releases

    (release,) = helm_releases(load_profile("llama3-8b-p5x2"))
    assert set(release) < set(inspect.signature(aws_eks_v2.HelmChart.__init__).parameters)
    assert (release["repository"], release["version"]) == ("oci://registry.k8s.io/jobset/charts/jobset", "0.12.0")
    assert release["values"] == {"controller": {"nodeSelector": {"holdfast.dev/pool": "system"}}}
    assert helm_releases(load_profile("cpu-demo"))[0]["values"] == {}
    json.dumps(release)


def test_the_commands_by_hand_install_the_same_release(synthesized: dict[str, Any]) -> None:
    folder: Path = synthesized["llama3-8b-p5x2"].platform
    text = (folder / "README.md").read_text()
    command = text[text.index("helm upgrade") : text.index("   Without Helm")]
    words = shlex.split(command)
    for option, value in (
        ("--install", "jobset"),
        ("--version", "0.12.0"),
        ("--namespace", "jobset-system"),
        ("--set-json", 'controller={"nodeSelector": {"holdfast.dev/pool": "system"}}'),
    ):
        assert words[words.index(option) + 1] == value
    assert "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/" in text
    assert max(map(len, text.splitlines())) <= 120
