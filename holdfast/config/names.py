"""Strings that two packages must agree on. One home each, so that a rename is one edit.

Everything below `run_dir` lives on the storage that all nodes share; see docs/architecture.md for who writes what.
"""

from __future__ import annotations

# --- exit codes of a pod (design section 4). NVRx's own codes are never passed on: 0 and 1 can each mean either. ---
EXIT_COMPLETE = 0
EXIT_RETRY = 1
"""Anything that Kubernetes should answer with a new pod or a new generation."""
EXIT_PREEMPTED = 75
"""SIGTERM was received, or this pod belongs to an older generation. Retry elsewhere."""
EXIT_CONFIG = 78
"""The input is wrong; a restart cannot cure it. The JobSet fails."""
EXIT_GIVE_UP = 93
"""The stop rule has spoken; a restart would repeat the failure. The JobSet fails."""
TERMINAL_CODES = (EXIT_CONFIG, EXIT_GIVE_UP)

# --- files in the run directory ---
COMPLETE = "COMPLETE"
"""JSON. Written last by rank 0, after the final checkpoint was committed."""
TERMINAL = "TERMINAL.json"
"""JSON {code, reason, rank, step, attempt}. First writer wins."""
GENERATION = "generation.json"
"""JSON: the one owner of the run directory: generation, size, who. Written once per generation, by its control pod."""
GENERATIONS = "generations"
"""Folder of claims, heartbeats and ends of generations."""
MEMBERS = "members"
"""Folder in which the worker pods of an elastic run say that they are there (holdfast/members.py)."""
RUN_YAML = "run.yaml"
CHECKPOINTS = "checkpoints"
EVENTS = "events"
ATTEMPTS = "attempts"
LINEAGE = "lineage.json"
"""In `attempts/`: JSON, the attempts in order and the step from which each went on (holdfast/lineage.py)."""
BUDGET = "budget.json"
"""In `attempts/`: JSON, when each attempt was first seen and what it cost: what the budgets of restarts are counted
from (trainer/restart/budget.py)."""
SKIPPED_BATCHES = "skipped_batches.json"
"""JSON: steps that make no update, since their loss was bad; the same on every attempt (trainer/restart/bad_loss.py).
"""
LOSSES = "losses.jsonl"
"""Mean loss by step, by rank 0, where recovery.loss_spike_factor is set: the running median outlives restarts."""
STEP_SEEN = "longest_step.json"
"""JSON: the longest step seen in this run, from which its time limit is learned (trainer/restart/learned_limits.py)."""
LOGS = "logs"
"""`logs/g1-c0/rank3.log`: output of each rank, by generation and launcher cycle."""
FAULTS = "faults"
ASIDE = "aside"
"""Committed checkpoints that training went back behind, by the attempt that did; never read again."""
TOKEN_CACHE = "cache/tokens"
"""Below the shared storage: tokenized shards, one folder per fingerprint, shared by all runs."""

# --- inside checkpoints/ ---
STEP_PREFIX = "step-"
"""`step-00000030/` holds one checkpoint in torch DCP layout. It counts only with COMMITTED in it."""
PARTIAL_SUFFIX = ".partial"
"""`step-00000030.g1-c0-r0.partial/`: being written by that attempt, or torn when it died. Never restored."""
COMMITTED = "COMMITTED.json"
PENDING_PREFIX = ".pending-"
"""`.pending-<attempt>-s<n>` becomes COMMITTED by one rename; the attempt in the name keeps a late one from committing
what is not its own."""
LEASES = "leases"
"""In `checkpoints/`: one beating file per reader; prune leaves the step that it names alone."""
LATEST = "LATEST"
"""Text: the name of the newest committed step folder. A convenience for people; restore does not rely on it."""

# --- Kubernetes ---
CONTROL = "control"
WORKERS = "workers"
TRAINER_CONTAINER = "trainer"
CONTROL_CONTAINER = "control"
STORE_PORT = 29400
"""nvrx-control's TCPStore: rendezvous of the launchers, and the process-group store of the ranks."""
STORE_PORT_NAME = "store"
METRICS_PORT_NAME = "metrics"
"""Container port of the control pod's metrics; `metrics-<n>` is that of local rank n."""
READY_FILE = "ready"
"""In HOLDFAST_SCRATCH; exists while the pod's launcher runs. The readiness probe of a worker looks for it."""
UNFIT_MARK = "unfit"
"""In HOLDFAST_NODE_VOLUME: text. Somebody (a health agent, an operator) says that this node must not train, and why."""
RANK_LOGS = "ranks"
"""In HOLDFAST_SCRATCH: output of this pod's ranks, as the launcher writes it; copied to LOGS."""
WHO_PREFIX = "who-"
"""In HOLDFAST_SCRATCH: `who-<local rank>.json`, JSON of trainer/restart/who.py: which rank this process is."""
HEALTH_SOCKET = "health.sock"
"""In HOLDFAST_SCRATCH: where the supervisor answers the launcher's question whether this node is fit."""
LEAVE_FILE = "leave.json"
"""In HOLDFAST_SCRATCH: the supervisor asks the ranks of its pod to save and leave, and says until when."""
CONFIG_MOUNT = "/etc/holdfast"
SCRATCH_MOUNT = "/run/holdfast"
SHM_MOUNT = "/dev/shm"
LOCAL_MOUNT = "/local"

# --- the cluster on AWS: infra builds it, k8s schedules on it ---
POOL_LABEL = "holdfast.dev/pool"
"""Node label: which of our two node groups a node belongs to."""
GPU_POOL = "gpu"
SYSTEM_POOL = "system"
GPU_TAINT = "nvidia.com/gpu"
GPU_TAINT_VALUE = "true"
"""NoSchedule on GPU nodes: nothing lands on them that does not ask for it."""
STORAGE_TAINT = "fsx.csi.aws.com/agent-not-ready"
"""NoExecute on a new GPU node, until the FSx CSI driver takes it away: a pod cannot mount before."""
SERVICE_ACCOUNT = "trainer"
"""Of the training pods, in the job's namespace. A Pod Identity association gives it a role; it needs no annotation."""
STACK_NETWORK = "network"
STACK_CLUSTER = "cluster"
STACK_STORAGE = "storage"
STACK_WORKLOAD = "workload"
STACK_GPU = "gpu"
"""Stacks, in the order of deployment; stack_name() has their names on AWS, which are the keys of cdk-outputs.json."""
OUTPUT_CLUSTER_NAME = "ClusterName"
OUTPUT_FILE_SYSTEM_ID = "FileSystemId"
OUTPUT_FILE_SYSTEM_DNS = "FileSystemDnsName"
OUTPUT_FILE_SYSTEM_MOUNT = "FileSystemMountName"
OUTPUT_CAPACITY_ENDS_AT = "CapacityEndsAt"
OUTPUT_IMAGE = "TrainerImage"
"""The image that was deployed with, where it is not that of the config."""

# --- environment variables that the manifest sets for our own code ---
ENV_STORAGE = "HOLDFAST_STORAGE"
"""Where the shared file system is mounted. Relative data paths start here."""
ENV_SCRATCH = "HOLDFAST_SCRATCH"
"""Pod-local folder for sockets, pid and readiness files."""
ENV_NODE_VOLUME = "HOLDFAST_NODE_VOLUME"
"""Where the node's own volume for the local checkpoint tier is mounted; set where there is one."""
ENV_POD = "HOLDFAST_POD"
ENV_NODE = "HOLDFAST_NODE"
ENV_POD_IP = "HOLDFAST_POD_IP"
ENV_STORE = "HOLDFAST_STORE"
"""host:port of the control pod's store."""
ENV_MASTER = "HOLDFAST_MASTER"
"""DNS name of node 0; only torchrun needs it."""
ENV_JOB = "HOLDFAST_JOB"
ENV_JOBSET_ATTEMPT = "HOLDFAST_JOBSET_ATTEMPT"
ENV_TERMINATION_MESSAGE = "HOLDFAST_TERMINATION_MESSAGE"
"""File whose content Kubernetes shows as the reason why the container ended."""
TERMINATION_MESSAGE_PATH = "/dev/termination-log"
ENV_METRICS = "HOLDFAST_METRICS"
"""host:port,host:port...: where local rank 0, 1, ... serves its metrics, or the control pod, which has one."""
ENV_GROUP_RANK = "GROUP_RANK"
"""NVRx's name: the infrastructure rank of the node. From the pod's job-index label."""

# --- environment variables that the supervisor adds for the launcher and its ranks ---
ENV_GENERATION = "HOLDFAST_GENERATION"
ENV_TOKEN = "HOLDFAST_TOKEN"

# --- sections of the rank monitor ---
SECTION_INIT = "init"
SECTION_RESTORE = "restore"
SECTION_STEP = "step"
SECTION_CHECKPOINT = "checkpoint"
SECTION_WARMUP = "warmup"
"""Nobody opens it. Where NVRx has no limit for it, its out-of-section clock stands until the first section called
`step`, and an attempt that never comes so far could stand still between two sections for ever."""


def resumed_record(incarnation: int, step: int) -> str:
    """In ATTEMPTS: the start by hand with this incarnation has obeyed resume.step."""
    return f"resumed-{incarnation}-at-{step}"


def step_folder(step: int) -> str:
    """Folder name of a committed step: `step-00000030`."""
    return f"{STEP_PREFIX}{step:08d}"


def step_of(folder: str) -> int | None:
    """The step that a folder name stands for, or None if it is not a plain step folder."""
    digits = folder.removeprefix(STEP_PREFIX)
    return int(digits) if folder.startswith(STEP_PREFIX) and digits.isdigit() else None


def stack_name(run: str, stack: str) -> str:
    """Name of a CloudFormation stack (STACK_*) of the run: `llama3-8b-p5x2-storage`."""
    return f"{run}-{stack}"
