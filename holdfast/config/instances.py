"""Facts about node types, each from the vendor's page named beside it. The rest of the code asks here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

_SIZES = "docs.aws.amazon.com/ec2/latest/instancetypes/ac.html"
_EFA = "docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"
_PAGES = "docs.aws.amazon.com/eks/latest/userguide/node-efa.html"


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One node type. Memory, shm and CPUs are what a worker pod requests, not what the vendor prints.

    The rest is for the kubelet, the device plugins and the file system client.
    """

    name: str
    gpus: int
    """GPUs of the node."""
    gpu_memory_gib: float = 0.0
    """Memory of each in GiB as torch reports it (total_memory), some 0.5 GiB less than nvidia-smi shows. 0: not known
    before a rank is there."""
    efa: int = 0
    """EFA interfaces that a worker pod takes: all, or none where EFA is not used."""
    network_cards: int = 1
    """Network cards; each takes two interfaces. Not always as many as EFA interfaces."""
    card0_efa: bool = True
    """Whether the first network card takes an EFA interface. On some newer types it is for ordinary traffic only."""
    hugepages_mib: int = 0
    """Memory in 2-MiB huge pages that a worker pod takes and node set-up reserves (AWS reserves 10256 with the EFA
    driver)."""
    memory_gib: int
    """Memory request and limit of a worker pod."""
    shm_gib: int
    """Size of /dev/shm; what is used of it counts towards memory_gib."""
    cpus: int
    """CPU request of a worker pod; there is no limit."""
    local_nvme: bool = False
    """Whether node set-up leaves an NVMe array at /mnt/k8s-disks/0 for us."""
    nvme_gb: int = 0
    """Size of that array in GB (10^9), as the vendor prints it."""
    peer_access: bool = True
    """Whether its GPUs reach each other's memory without the host."""
    ec2: bool = True
    """False for this machine, which has no instance-type label."""
    source: str

    @property
    def is_cpu(self) -> bool:
        """True for the local runner's pretend node."""
        return self.gpus == 0


class _EfaNode(TypedDict):
    hugepages_mib: int
    local_nvme: bool
    source: str


_EFA_NODE: _EfaNode = {"hugepages_mib": 5120, "local_nvme": True, "source": f"{_SIZES}; {_EFA}; {_PAGES}"}

CATALOG: dict[str, Instance] = {
    instance.name: instance
    for instance in (
        # 4 GiB: launcher, monitor, rank and writer each import torch (about 0.4 GiB).
        Instance(name="cpu", gpus=0, memory_gib=4, shm_gib=1, cpus=1, ec2=False, source="the local runner"),
        # 8 is the most that one machine has; a pod takes as many as cluster.ranks_per_node.
        Instance(name="gpu-local", gpus=8, memory_gib=64, shm_gib=16, cpus=8, ec2=False, source="this machine"),
        # 192 vCPU, 2048 GiB, 8 x H100 80 GB, 8 x 3.84 TB NVMe
        Instance(
            name="p5.48xlarge",
            gpus=8,
            gpu_memory_gib=79.1,
            efa=32,
            network_cards=32,
            memory_gib=1700,
            shm_gib=256,
            cpus=96,
            nvme_gb=30400,
            **_EFA_NODE,
        ),
        # 192 vCPU, 2048 GiB, 8 x H200 141 GB, 8 x 3.84 TB NVMe
        Instance(
            name="p5e.48xlarge",
            gpus=8,
            gpu_memory_gib=139.7,
            efa=32,
            network_cards=32,
            memory_gib=1700,
            shm_gib=256,
            cpus=96,
            nvme_gb=30400,
            **_EFA_NODE,
        ),
        # the same with half as many, faster cards
        Instance(
            name="p5en.48xlarge",
            gpus=8,
            gpu_memory_gib=139.7,
            efa=16,
            network_cards=16,
            memory_gib=1700,
            shm_gib=256,
            cpus=96,
            nvme_gb=30400,
            **_EFA_NODE,
        ),
        # 96 vCPU, 1152 GiB, 8 x A100 40 GB, 8 x 1 TB NVMe
        Instance(
            name="p4d.24xlarge",
            gpus=8,
            gpu_memory_gib=39.3,
            efa=4,
            network_cards=4,
            memory_gib=1000,
            shm_gib=128,
            cpus=48,
            nvme_gb=8000,
            **_EFA_NODE,
        ),
        # the same with 80 GB per GPU
        Instance(
            name="p4de.24xlarge",
            gpus=8,
            gpu_memory_gib=79.1,
            efa=4,
            network_cards=4,
            memory_gib=1000,
            shm_gib=128,
            cpus=48,
            nvme_gb=8000,
            **_EFA_NODE,
        ),
        # 48 vCPU, 384 GiB, 4 x L40S 48 GB without NVLink. Has one EFA; not used.
        Instance(
            name="g6e.12xlarge",
            gpus=4,
            gpu_memory_gib=44.4,
            memory_gib=300,
            shm_gib=16,
            cpus=24,
            peer_access=False,
            source=_SIZES,
        ),
        # 32 vCPU, 128 GiB, 1 x L4 24 GB. Has one EFA; not used.
        Instance(
            name="g6.8xlarge",
            gpus=1,
            gpu_memory_gib=21.9,
            memory_gib=100,
            shm_gib=16,
            cpus=24,
            peer_access=False,
            source=_SIZES,
        ),
        # 32 vCPU, 128 GiB, 1 x A10G 24 GB. Has one EFA; not used, so that the test profile needs no EFA set-up.
        Instance(
            name="g5.8xlarge",
            gpus=1,
            gpu_memory_gib=21.9,
            memory_gib=100,
            shm_gib=16,
            cpus=24,
            peer_access=False,
            source=_SIZES,
        ),
    )
}
