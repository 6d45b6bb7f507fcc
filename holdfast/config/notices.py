"""What is accepted, but should be known before it is paid for. Printed by `holdfast check`, app.py and k8s/main.py."""

from __future__ import annotations

from holdfast.config import fsx, gpu_memory
from holdfast.config.schema import RunConfig


def notices(config: RunConfig) -> list[str]:
    """One sentence or two for each thing; empty for node types that are not EC2's."""
    if not config.instance.ec2:
        return []
    found = []
    slow = fsx.slow_write(config)
    if slow:
        found.append(f"slow writes accepted: {slow}. Reason given: {config.storage.accept_slow_writes}")
    if (too_large := gpu_memory.of_instance_type(config)) is not None:
        found.append(f"a step may not fit: {too_large.why}. Reason given: {config.training.accept_gpu_memory}")
    if config.storage.deployment_type == "SCRATCH_2":
        found.append("storage.deployment_type=SCRATCH_2 is not replicated: a failed file server loses checkpoints")
    if config.storage.fsx.efa:
        found.append(
            "storage.fsx.efa=True: the nodes' Lustre client is not set up for EFA here, and mounts over TCP; AWS "
            "describes the set-up in user data under `Optimize Amazon FSx for Lustre performance on nodes (EFA)`"
        )
    if config.aws.allow_data_loss:
        found.append("aws.allow_data_loss=True: `cdk destroy` deletes the file system and the checkpoint bucket")
    if config.elastic and (left_out := sorted(set(range(config.min_nodes, config.cluster.nodes)) - set(config.sizes))):
        batch = f"training.global_batch_size={config.training.global_batch_size}"
        found.append(
            f"recovery.min_nodes={config.min_nodes}: {batch} cannot be spread over "
            f"{' or '.join(map(str, left_out))} nodes; the job runs with {' or '.join(map(str, config.sizes))}"
        )
    if config.aws.nic_layout == "ena" and config.instance.efa:
        found.append("aws.nic_layout=ena was not verified on a managed node group; the way back is aws.nic_layout: efa")
    return found
