"""The text beside the platform's manifests: the order by hand, for clusters where `cdk deploy` does not apply them."""

from __future__ import annotations

from holdfast.config import RunConfig
from k8s.controller import MANIFESTS, helm_command
from k8s.platform import helm_releases
from k8s.storage import volume_name


def platform_readme(config: RunConfig, *, left_out: str = "") -> str:
    """Markdown. left_out: why there is no storage in the folder."""
    helm = "\n\n".join(_block(helm_command(release)) for release in helm_releases(config))
    by_hand = (
        f"kubectl apply --server-side -f {MANIFESTS}\n"
        "kubectl wait --for=condition=Available --timeout=300s --namespace jobset-system deployment --all"
    )
    return f"""# Platform by hand

With `aws.apply_manifests: true` (the default) `cdk deploy` has done all of this. Without it, in this folder, once per
cluster:

1. The JobSet controller. Its CRD is too large for a plain `kubectl apply`.

{helm}

   Without Helm:

{_block(by_hand)}

2. Everything else, in the order of the file names.

{_block("kubectl apply -f .")}

{_storage(config, left_out)}

Then the job:

{_block("kubectl apply -f ../job")}
"""


def _storage(config: RunConfig, left_out: str) -> str:
    claim = f"the claim `{config.storage.claim}` in the namespace `{config.cluster.namespace}`"
    if left_out:
        return f"Storage is not among the files: {left_out}. Pods wait for {claim}."
    if not config.instance.ec2:
        return f"Storage is yours to bring: {claim}, ReadWriteMany."
    return f"""A volume cannot be pointed at another file system, and one whose claim was deleted does not bind again.
In both cases delete the volume first; no data goes with it:

{_block(f"kubectl delete pv {volume_name(config)}")}"""


def _block(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())
