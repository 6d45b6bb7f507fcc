"""Workload stack: device plugins and storage objects, applied within `cdk deploy`. Never the training job: an update of
a stack must not restart a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from holdfast.config import RunConfig, names
from infra.stack import HoldfastStack


class WorkloadStack(HoldfastStack):
    """One KubernetesManifest for each list of objects, each after the one before, and one HelmChart per release."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: RunConfig,
        cluster: eks.Cluster,
        manifests: Mapping[str, Sequence[Mapping[str, Any]]],
        releases: Sequence[Mapping[str, Any]],
    ) -> None:
        """`manifests`: name -> plain objects, in the order of application; their strings may hold tokens of other
        stacks. `releases`: arguments of eks.HelmChart."""
        purpose = "device plugins, storage and the JobSet controller in the cluster"
        super().__init__(scope, construct_id, config=config, stack=names.STACK_WORKLOAD, purpose=purpose)
        # The protocol has a deprecated member that the class no longer has.
        target = cast(eks.ICluster, cluster)
        self.manifests: list[eks.KubernetesManifest] = []
        for name, objects in manifests.items():
            # Not cluster.add_cdk8s_chart: it would live in the cluster's stack, which the objects' tokens depend on.
            manifest = eks.KubernetesManifest(
                self, f"Manifest-{name}", cluster=target, manifest=[dict(item) for item in objects], overwrite=True
            )
            if self.manifests:
                manifest.node.add_dependency(self.manifests[-1])
            self.manifests.append(manifest)
        self.releases = [
            eks.HelmChart(self, f"Release-{release['release']}", cluster=target, **release) for release in releases
        ]
