"""The JobSet controller, as a Helm release.

Its CRD has 824 kB: `kubectl apply` copies an object into an annotation of at most 256 KiB and fails, and CDK's kubectl
Lambda applies in that way. Helm creates CRDs without the copy, in CDK (eks.HelmChart) as well as by hand.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.config import RunConfig
from k8s.placement import SYSTEM_NODES

VERSION = "0.12.0"
MANIFESTS = f"https://github.com/kubernetes-sigs/jobset/releases/download/v{VERSION}/manifests.yaml"
"""The same without Helm, for `kubectl apply --server-side`."""


def jobset_release(config: RunConfig) -> dict[str, Any]:
    """The release, under the names that eks.HelmChart's arguments have."""
    values: dict[str, Any] = {"controller": {"nodeSelector": SYSTEM_NODES}} if config.instance.ec2 else {}
    return {
        "release": "jobset",
        "chart": "jobset",
        "repository": "oci://registry.k8s.io/jobset/charts/jobset",
        "version": VERSION,
        "namespace": "jobset-system",
        "create_namespace": True,
        "wait": True,  # a JobSet that comes before its webhook is refused
        "values": values,
    }


def helm_command(release: dict[str, Any]) -> str:
    """The command line that installs or upgrades a release."""
    words = [
        f"helm upgrade --install {release['release']} {release['repository']} --version {release['version']}",
        f"--namespace {release['namespace']} --create-namespace --wait",
        *(f"--set-json '{key}={json.dumps(value)}'" for key, value in release["values"].items()),
    ]
    return " \\\n  ".join(words)
