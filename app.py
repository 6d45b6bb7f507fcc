"""Composition root of the CDK app: config -> stacks and charts -> cdk.out. `cdk synth -c profile=llama3-8b-p5x2`.

CDK context, by -c key=value or in cdk.json: profile, any dotted key of the config, set (several of them), and what only
an account knows (infra/deployment.py). Bad input ends with one message on standard error and exit code 2.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent
if __name__ == "__main__" and (
    missing := [
        name for name in ("pydantic", "yaml", "cdk8s", "aws_cdk", "cdk_nag") if not importlib.util.find_spec(name)
    ]
):
    print(f"{sys.executable} lacks {', '.join(missing)}: run `make venv`, then use .venv/bin/python", file=sys.stderr)
    sys.exit(2)

from holdfast.config import EXIT_BAD_CONFIG, ConfigError, RunConfig, prices  # noqa: E402
from holdfast.config.notices import notices  # noqa: E402
from infra.deployment import Deployment, block_notices, read  # noqa: E402
from k8s.main import use_bundled_node  # noqa: E402

if TYPE_CHECKING:
    import aws_cdk as cdk


def context_of_the_app() -> dict[str, Any]:
    """The feature flags of cdk.json, and what its CLI adds: templates must not depend on who starts this file."""
    context: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    return context | {"aws:cdk:enable-path-metadata": True}


def build(app: cdk.App, config: RunConfig, deployment: Deployment) -> None:
    """Add all stacks to the app. Deployment goes from top to bottom, destruction from bottom to top.

    Gpu comes last: its nodes find their plugins, and it can be destroyed alone.
    """
    from infra.cluster import ClusterStack
    from infra.gpu_nodes import GpuStack
    from infra.network import NetworkStack
    from infra.storage import StorageStack
    from infra.workload import WorkloadStack
    from k8s.platform import FileSystem, helm_releases, manifests, platform_charts

    network = NetworkStack(app, "Network", config=config, deployment=deployment)
    cluster = ClusterStack(
        app, "Cluster", config=config, deployment=deployment, vpc=network.vpc, dockerfile_folder=ROOT
    )
    nodes_group_id = cluster.cluster.cluster_security_group_id
    storage = StorageStack(
        app,
        "Storage",
        config=config,
        vpc=network.vpc,
        gpu_subnet=network.gpu_subnet,
        cluster_name=cluster.cluster.cluster_name,
        nodes_group_id=nodes_group_id,
    )
    before_gpu: list[cdk.Stack] = [cluster, storage]
    if config.aws.apply_manifests:
        fs = storage.file_system
        file_system = FileSystem(id=fs.ref, dns_name=fs.attr_dns_name, mount_name=fs.attr_lustre_mount_name)
        workload = WorkloadStack(
            app,
            "Workload",
            config=config,
            cluster=cluster.cluster,
            manifests=manifests(platform_charts(config, file_system=file_system)),
            releases=helm_releases(config),
        )
        workload.add_stack_dependency(cluster)
        workload.add_stack_dependency(storage)
        before_gpu.append(workload)
    gpu = GpuStack(
        app,
        "Gpu",
        config=config,
        deployment=deployment,
        cluster_name=cluster.cluster.cluster_name,
        nodes_group_id=nodes_group_id,
        vpc=network.vpc,
        gpu_subnet=network.gpu_subnet,
        storage_efa_group_id=storage.efa_client_group_id,
    )
    for stack in before_gpu:
        gpu.add_stack_dependency(stack)


def synthesize(context: Mapping[str, Any], *, outdir: str | None = None, cdk_validator: bool | None = None) -> None:
    """Write the cloud assembly, with more context than cdk.json and the CLI give.

    outdir and cdk_validator (the CDK's own, which takes seconds) are by default as the CLI, or CDK_OUTDIR and
    CDK_VALIDATION, say. Raises ConfigError, and Refused if a rule finds fault.
    """
    use_bundled_node()
    # Not before: aws_cdk starts Node when it is imported.
    import aws_cdk as cdk
    from cdk_nag import AwsSolutionsChecks

    from infra.rules.plugin import HoldfastRules

    app = cdk.App(
        context={**context_of_the_app(), **context},
        outdir=outdir,
        builtin_cloud_formation_validation=cdk_validator,
        analytics_reporting=False,
    )
    config, deployment = read(app.node.get_all_context())
    found = [*notices(config), *block_notices(config, deployment, datetime.now(UTC))]
    print("\n".join([*prices.lines(config), *found]), file=sys.stderr)
    build(app, config, deployment)
    cdk.Validations.of(app).add_plugins(HoldfastRules(), AwsSolutionsChecks(app))
    try:
        app.synth()
    except RuntimeError as error:
        # jsii has one exception for all that goes wrong in Node; the CDK has printed the report already.
        if "ValidationFailed" not in str(error):
            raise
        raise Refused(str(error).rpartition("ValidationFailed: ")[2]) from None


class Refused(Exception):
    """A rule has found fault with the templates; the report has been printed."""


def main() -> int:
    """Synthesize what the context asks for; the exit code."""
    try:
        synthesize({})
    except (ConfigError, Refused) as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    return 0


if __name__ == "__main__":
    sys.exit(main())
