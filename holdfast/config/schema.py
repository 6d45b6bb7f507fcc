"""`RunConfig`: a complete description of one run. Frozen, unknown keys refused, units in the names.

Each field carries its meaning and its limits. What involves more than one field is checked in checks.py; sizes that
follow from the model are formulas in sizing.py. No AWS identifier and no secret enters a config.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from holdfast.config.aws import Aws, Capacity, Cost, FsxOptions
from holdfast.config.data import Data
from holdfast.config.elastic import divides
from holdfast.config.faults import Fault
from holdfast.config.instances import CATALOG, Instance
from holdfast.config.metrics import Metrics
from holdfast.config.model import Model
from holdfast.config.recovery import Recovery, Reliability, Resume
from holdfast.config.section import Moment, NumberFromText, Real, Seconds, Section, Whole

__all__ = [
    "Aws",
    "Capacity",
    "Checkpoint",
    "Cluster",
    "Cost",
    "Data",
    "Fault",
    "FsxOptions",
    "LocalTier",
    "Metrics",
    "Model",
    "Recovery",
    "Reliability",
    "Resume",
    "RunConfig",
    "Section",
    "Storage",
    "Training",
]


class Cluster(Section):
    """How many nodes of which kind. One pod per node."""

    instance_type: str = "cpu"
    """EC2 instance type from holdfast/config/instances.py, or `cpu` for the local runner."""
    nodes: Annotated[Whole, Field(ge=1, le=1024)] = 2
    """Nodes that train. World size is nodes x ranks_per_node."""
    ranks_per_node: Annotated[Whole, Field(ge=1, le=16)] = 1
    """Training processes per node; one per GPU."""
    grace_period_s: Annotated[Whole, Field(ge=5, le=3600)] = 900
    """terminationGracePeriodSeconds of a worker pod: time between SIGTERM and SIGKILL."""
    capacity_ends_at: Moment | None = None
    """When the nodes are taken away, with a time zone, like 2026-12-24T11:30:00Z. k8s/main.py takes it from the
    deployment of a Capacity Block."""
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "holdfast"
    """Kubernetes namespace of the job."""


class Storage(Section):
    """The file system that all nodes share."""

    mount_path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/fsx"
    """Where it is mounted in every pod. Run directories are <mount_path>/runs/<name>."""
    claim: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "fsx"
    """PersistentVolumeClaim that the pods mount."""
    deployment_type: Literal["SCRATCH_2", "PERSISTENT_2"] = "SCRATCH_2"
    """FSx for Lustre deployment type. SCRATCH_2 is not replicated; PERSISTENT_2 is."""
    capacity_gib: Annotated[Whole, Field(ge=1200, le=1_000_000)] = 1200
    """Size of the file system: 1200, 2400, or a multiple of 2400."""
    throughput_mbps_per_tib: Annotated[Literal[125, 250, 500, 1000], NumberFromText] | None = None
    """PERSISTENT_2 only: MB/s of throughput per TiB. SCRATCH_2 has a fixed 200."""
    accept_slow_writes: str | None = None
    """A reason. Turns the refusal of a file system that is too slow for the checkpoint interval into a warning."""
    fsx: FsxOptions = FsxOptions()
    """Further options of the file system."""


class Training(Section):
    """Steps, batch and optimizer."""

    steps: Annotated[Whole, Field(ge=1)] = 60
    """Optimizer updates in all."""
    global_batch_size: Annotated[Whole, Field(ge=1)] = 8
    """Samples per step over all ranks. The same at any world size."""
    micro_batch_size: Annotated[Whole, Field(ge=1)] = 4
    """Samples per rank and forward pass; the rest is gradient accumulation."""
    learning_rate: Annotated[Real, Field(gt=0)] = 1e-3
    """Peak learning rate of AdamW."""
    min_learning_rate_ratio: Annotated[Real, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a part of the peak."""
    warmup_steps: Annotated[Whole, Field(ge=0)] = 10
    """Steps of linear warm-up, then cosine decay."""
    weight_decay: Annotated[Real, Field(ge=0)] = 0.1
    """AdamW weight decay."""
    beta1: Annotated[Real, Field(gt=0, lt=1)] = 0.9
    """AdamW beta 1."""
    beta2: Annotated[Real, Field(gt=0, lt=1)] = 0.95
    """AdamW beta 2."""
    clip_norm: Annotated[Real, Field(gt=0)] = 1.0
    """Gradient norm is clipped to this."""
    evaluate_every_steps: Annotated[Whole, Field(ge=1)] | None = None
    """Compute the loss on held-out data every so many steps, and at the last. Null: never."""
    evaluation_samples: Annotated[Whole, Field(ge=1)] = 256
    """Held-out samples per evaluation, the same ones each time; rounded down to whole global batches, at least one."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What backward computes again instead of keeping it in memory. none: nothing. selective: of each block all but
    matrix products and attention. full: each block, from its input."""
    compile: bool = False
    """Compile each block with torch.compile. Compiled code stays in the pod: a restart in it compiles nothing again."""
    loss_chunk_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """Compute output layer and loss, with their gradients, for so many tokens at a time, so that the logits of a large
    vocabulary are never whole in memory. Null: all at once."""
    reduce_gradients: Literal["each_pass", "last_pass"] = "each_pass"
    """When gradient accumulation adds up over ranks. each_pass: gradients are kept in shards. last_pass: once per step,
    and until then every rank keeps all of them in float32: less traffic for 4 bytes more per parameter."""
    accept_gpu_memory: str | None = None
    """A reason. Turns the refusal of a step that is predicted not to fit into the GPUs into a warning."""
    expected_step_s: Seconds | None = None
    """What one step is expected to take, checkpoints apart. An assumption, used for planning only; needed where a save
    is judged against the time between saves (EC2 types)."""
    min_step_s: Annotated[Real, Field(ge=0)] = 0.0
    """Pad every step to this length. For demonstrations and tests: makes a toy model's step as long as a real one's."""


class LocalTier(Section):
    """A second, faster tier: each node's own disk or memory, with a copy on a neighbour node. For lost ranks and nodes;
    the shared storage remains the tier that outlives everything."""

    interval_steps: Annotated[Whole, Field(ge=1)] | None = None
    """A local save every so many steps. Null: no local tier."""
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")] = "/local"
    """Where the node's own volume is mounted in the pod: the NVMe array, or memory under /dev/shm."""
    keep_last: Annotated[Whole, Field(ge=1)] = 2
    """Local saves to keep on each node."""
    replicate: bool = True
    """Also send each rank's part to the next node. Without it, a lost node means going back to the shared storage."""


class Checkpoint(Section):
    """How often state is saved, and what a save may cost."""

    mode: Literal["async", "sync", "off"] = "async"
    """async: staged copy and background write. sync: the step waits for the commit. off: none."""
    interval_steps: Annotated[Whole, Field(ge=1)] = 10
    """A save every so many steps, and at the last."""
    keep_last: Annotated[Whole, Field(ge=2)] = 2
    """Committed checkpoints to keep. At least 2: the newest may turn out damaged."""
    keep_every_steps: Annotated[Whole, Field(ge=1)] | None = None
    """Keep every checkpoint whose step is a multiple of this for ever."""
    writer_threads: Annotated[Whole, Field(ge=1, le=64)] = 2
    """Files written in parallel by one rank's writer process."""
    persist_timeout_s: Seconds = 900
    """A background write (stage to commit) that takes longer is counted as failed and its writer replaced."""
    max_failed_saves: Annotated[Whole, Field(ge=1)] = 3
    """So many failed saves in a row end the run: it would lose ever more work while looking healthy."""
    verify: Literal["full", "sampled", "sizes"] = "full"
    """What restore checks of a committed checkpoint: every block that it reads, each sixteenth one, or file sizes only.
    A block is verified as it is read, so that `full` reads nothing twice."""
    read_threads: Annotated[Whole, Field(ge=1, le=64)] = 4
    """Parallel readers of one rank's restore."""
    reserve_gib: Annotated[Real, Field(ge=0)] = 0.0
    """A save is not begun if it would leave less than this free on the shared storage."""
    local: LocalTier = LocalTier()
    """The tier on the nodes themselves."""


class RunConfig(Section):
    """A complete description of one run."""

    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=28)]
    """Name of the run: its folder, and the stem of its Kubernetes objects. DNS label of at most 28 characters, so that
    `<name>-<hash>-workers-<index>-0-<suffix>` fits Kubernetes' 63."""
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] = 1234
    """Seed of weights, sample order and dropout."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where ranks compute. cpu uses gloo, cuda NCCL, by the same code."""
    image: str = "holdfast-trainer:local"
    """Container image; pin it by digest for a cluster."""
    cluster: Cluster = Cluster()
    """Nodes."""
    storage: Storage = Storage()
    """Shared file system."""
    model: Model = Model()
    """Model."""
    data: Data = Data()
    """Data."""
    training: Training = Training()
    """Training."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    recovery: Recovery = Recovery()
    """Recovery."""
    resume: Resume = Resume()
    """Resume."""
    reliability: Reliability = Reliability()
    """Failure rates."""
    metrics: Metrics = Metrics()
    """Live metrics."""
    aws: Aws = Aws()
    """The cluster on AWS."""
    cost: Cost = Cost()
    """Spending limits."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject. Empty in every real run."""

    @property
    def world_size(self) -> int:
        """Training processes: nodes x ranks per node."""
        return self.cluster.nodes * self.cluster.ranks_per_node

    @property
    def pods(self) -> int:
        """Worker pods: training nodes and hot spares."""
        return self.cluster.nodes + self.recovery.spares

    @property
    def max_nodes(self) -> int:
        """Upper end of the launcher's --nnodes range."""
        return self.cluster.nodes + self.recovery.spares + self.recovery.replacement_budget

    @property
    def run_dir(self) -> PurePosixPath:
        """The run directory as a pod sees it."""
        return PurePosixPath(self.storage.mount_path) / "runs" / self.name

    @property
    def instance(self) -> Instance:
        """Facts about the node type."""
        return CATALOG[self.cluster.instance_type]

    @property
    def accumulation(self) -> int:
        """Forward passes per rank and step at full size."""
        return self.accumulation_at(self.world_size)

    def accumulation_at(self, world_size: int) -> int:
        """Forward passes per rank and step of so many ranks. The global batch is the same at any size."""
        return self.training.global_batch_size // (world_size * self.training.micro_batch_size)

    @property
    def min_nodes(self) -> int:
        """The fewest nodes that the job goes on with."""
        return self.cluster.nodes if self.recovery.min_nodes is None else self.recovery.min_nodes

    @property
    def elastic(self) -> bool:
        """Whether the job may go on with fewer nodes than cluster.nodes."""
        return self.min_nodes < self.cluster.nodes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that the job may run with, ascending: those over which the global batch can be spread."""
        nodes = self.cluster.nodes
        return (*(size for size in range(self.min_nodes, nodes) if divides(self, size)), nodes)
