"""The launch contract: config + generation + size -> command lines and environment. Pure: no I/O, no environment.

The manifest uses the pod commands and the environment; the supervisor in the pod uses the launcher lines, because
generation and size are known only at run time. Each variable carries the reason why it is set.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from holdfast.config import RunConfig, dump, names
from holdfast.config.metrics import served_ports


@dataclass(frozen=True)
class Variable:
    """One environment variable. One of value and field_path (downward API) is set; reason says why it exists."""

    name: str
    reason: str
    value: str | None = None
    field_path: str | None = None


def job_name(config: RunConfig, shape: str) -> str:
    """`<name>-<hash8>`: what cannot change in a JobSet makes a new one instead of an apply that is refused.

    shape: text of the objects themselves, which also change with Holdfast's own code while the config stays.
    """
    return f"{config.name}-{hashlib.sha256((dump(config) + shape).encode()).hexdigest()[:8]}"


def control_host(job: str) -> str:
    """DNS name of the control pod: `<jobset>-<replicated job>-<job index>-<pod index>.<subdomain>`."""
    return f"{job}-{names.CONTROL}-0-0.{job}"


def worker_host(job: str, index: int) -> str:
    """DNS name of the worker pod of node `index`."""
    return f"{job}-{names.WORKERS}-{index}-0.{job}"


def pod_command(config: RunConfig, role: str) -> list[str]:
    """The container's command; role is `worker` or `control`. Python is PID 1 and must reap."""
    return [
        "python",
        "-m",
        "trainer.supervisor",
        role,
        "--config",
        f"{names.CONFIG_MOUNT}/{names.RUN_YAML}",
        "--run-dir",
        str(config.run_dir),
    ]


def pod_environment(config: RunConfig, job: str, role: str) -> tuple[Variable, ...]:
    """Environment of a pod's container, in a fixed order."""
    variables = [
        Variable(names.ENV_STORAGE, "relative data paths start here", value=config.storage.mount_path),
        Variable(names.ENV_SCRATCH, "pod-local sockets, pid and readiness files", value=names.SCRATCH_MOUNT),
        Variable(names.ENV_POD, "events and records name the pod", field_path="metadata.name"),
        Variable(names.ENV_NODE, "events and records name the node", field_path="spec.nodeName"),
        Variable(
            names.ENV_POD_IP,
            "rank 0's address for its peers; a bare pod name does not resolve",
            field_path="status.podIP",
        ),
        Variable(
            names.ENV_STORE, "rendezvous and process-group store", value=f"{control_host(job)}:{names.STORE_PORT}"
        ),
        Variable(
            names.ENV_JOB,
            "the owner record names the job",
            field_path="metadata.labels['jobset.sigs.k8s.io/jobset-name']",
        ),
        Variable(
            names.ENV_JOBSET_ATTEMPT,
            "tells pods of an older generation apart",
            field_path="metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
        ),
        Variable(
            names.ENV_TERMINATION_MESSAGE,
            "`kubectl describe pod` shows why the pod ended",
            value=names.TERMINATION_MESSAGE_PATH,
        ),
        Variable("PYTHONUNBUFFERED", "a killed process must not take its last log lines with it", value="1"),
        Variable(
            "TMPDIR", "NVRx puts its sockets there; the scratch volume dies with the pod", value=names.SCRATCH_MOUNT
        ),
    ]
    if ports := served_ports(config):
        # All of the pod's addresses, IPv4: a scraper comes from outside.
        places = [f"0.0.0.0:{port}" for port in (ports if role == "worker" else ports[:1])]
        variables.append(
            Variable(names.ENV_METRICS, "where each local rank serves its metrics", value=",".join(places))
        )
    if role == "worker":
        variables.append(
            Variable(
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                "whose line it is, on the pod's console",
                value="[rank ${rank}] ",
            )
        )
        variables.append(
            Variable(
                names.ENV_GROUP_RANK,
                "NVRx's infrastructure rank of the node",
                field_path="metadata.labels['jobset.sigs.k8s.io/job-index']",
            )
        )
        if config.checkpoint.local.interval_steps is not None:
            why = "the node's own volume, for the local checkpoint tier"
            variables.append(Variable(names.ENV_NODE_VOLUME, why, value=config.checkpoint.local.path))
        variables.append(Variable(names.ENV_MASTER, "torchrun's store", value=worker_host(job, 0)))
        variables += _rank_environment(config)
    return tuple(variables)


def _rank_environment(config: RunConfig) -> list[Variable]:
    variables = [
        Variable("GLOO_SOCKET_IFNAME", "gloo otherwise binds to what the host name resolves to", value="eth0"),
        Variable(
            "JE_ARROW_MALLOC_CONF",
            "pyarrow's allocator starts a thread where it is imported, and a process of two threads is not forked",
            value="background_thread:false",
        ),
        Variable("TORCH_CPP_LOG_LEVEL", "store polls of the restart layers would log every time-out", value="ERROR"),
    ]
    if config.device == "cpu":
        variables.append(Variable("OMP_NUM_THREADS", "ranks share the cores of one machine", value="1"))
        return variables
    variables += [
        Variable("TORCH_FR_BUFFER_SIZE", "flight recorder: which collective hung", value="2000"),
        Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "write the flight recorder when a collective times out", value="1"),
        Variable("PYTORCH_ALLOC_CONF", "long runs fragment fixed segments", value="expandable_segments:True"),
    ]
    if config.recovery.in_process:
        variables += [
            Variable("NCCL_NVLS_ENABLE", "NVLink SHARP cannot be torn down by an in-process abort", value="0"),
            Variable("TORCH_NCCL_RETHROW_CUDA_ERRORS", "an aborted collective must not kill the process", value="0"),
        ]
    if config.instance.efa:
        variables.append(
            Variable("FI_EFA_USE_HUGE_PAGE", "a fork with huge pages mapped can fail to allocate", value="0")
        )
    elif config.instance.gpus:
        variables.append(Variable("NCCL_NET_PLUGIN", "no EFA on this instance type", value="none"))
        if not config.instance.peer_access:
            why = "GPUs without peer access; copies through shm are faster"
            variables.append(Variable("NCCL_SHM_USE_CUDA_MEMCPY", why, value="1"))
    return variables


def rendezvous_id(config: RunConfig, generation: int) -> str:
    """Keeps generations apart in the store."""
    return f"{config.name}-g{generation}"


def _node_range(config: RunConfig, nodes: int) -> str:
    """MIN:MAX, MIN the size of this generation. NVRx trains on exactly MIN nodes, keeps the rest as hot spares, and
    closes the rendezvous for good once more than MAX - MIN nodes were unhealthy in this generation; a MAX above the pod
    count costs nothing."""
    return f"{nodes}:{config.max_nodes}"


def _console_script(config: RunConfig, name: str) -> list[str]:
    """NVRx's console script `name`. Not `python -m` NVRx's own module: that ends with other codes."""
    return ["python", "-m", "trainer.restart.launcher", name] if config.recovery.short_pauses else [name]


def control_argv(config: RunConfig, *, generation: int, nodes: int, port: int) -> list[str]:
    """Command line of nvrx-control for one generation. `nodes` is the number that trains, `port` where its store
    listens.
    """
    return [
        *_console_script(config, "nvrx-control"),
        f"--nnodes={_node_range(config, nodes)}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={rendezvous_id(config, generation)}",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        f"--rdzv-conf=join_timeout={config.recovery.join_timeout_s}",
        "--ft-enable-log-server=false",  # without log arguments nvrx-control 0.6.0 exits 1
    ]


def launcher_argv(
    config: RunConfig,
    *,
    generation: int,
    nodes: int,
    store: str,
    local_addr: str,
    group_rank: int,
    master: str,
    rank_args: list[str],
    log_dir: str | None = None,
    health_socket: str | None = None,
) -> list[str]:
    """Command line of a worker pod's launcher.

    store: host:port of the control pod. local_addr: this pod's address. master: address of pod 0, used by torchrun
    only. rank_args: arguments of `python -m trainer`, which every rank gets. log_dir: pod-local folder for the ranks'
    output, which is repeated on the console. health_socket: where the supervisor says whether this node is fit.
    """
    logs = [] if log_dir is None else [f"--log-dir={log_dir}", "--redirects=3", "--tee=3"]
    if not config.recovery.in_job:
        port = int(store.rpartition(":")[2]) + 1
        return _torchrun_argv(
            config, nodes=nodes, group_rank=group_rank, master=f"{master}:{port}", logs=logs, rank_args=rank_args
        )
    r = config.recovery
    sections = {
        names.SECTION_INIT: r.init_section_timeout_s,
        names.SECTION_RESTORE: r.restore_section_timeout_s,
        names.SECTION_STEP: r.step_section_timeout_s,
        names.SECTION_CHECKPOINT: r.checkpoint_section_timeout_s,
        names.SECTION_WARMUP: r.init_section_timeout_s,
    }
    return [
        *_console_script(config, "ft_launcher"),
        f"--nnodes={_node_range(config, nodes)}",
        f"--nproc-per-node={config.cluster.ranks_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={rendezvous_id(config, generation)}",
        f"--rdzv-endpoint={store}",
        f"--rdzv-conf=is_host=0,join_timeout={r.join_timeout_s}",
        f"--local-addr={local_addr}",
        f"--max-restarts={r.max_in_job_restarts}",
        f"--monitor-interval={r.monitor_interval_s}",
        f"--workers-stop-timeout={r.workers_stop_timeout_s}",
        f"--term-timeout={r.term_timeout_s}",
        f"--ft-workload-check-interval={r.workload_check_interval_s}",
        # NVRx looks again only after so long (2 s) whether killed ranks have given their GPU memory back.
        f"--ft-gpu-memory-poll-interval={r.workload_check_interval_s}",
        "--ft-rank-section-timeouts=" + ",".join(f"{name}:{limit}" for name, limit in sections.items()),
        f"--ft-rank-out-of-section-timeout={r.out_of_section_timeout_s}",
        "--ft-max-no-progress-cycles=0",  # counts two unrelated faults within one interval as a stall; ours is the rule
        *([] if health_socket is None else [f"--ft-node-health-check-endpoint={health_socket}"]),
        *logs,
        "-m",
        "trainer.standby.door" if r.standby else "trainer",
        *rank_args,
    ]


def _torchrun_argv(
    config: RunConfig, *, nodes: int, group_rank: int, master: str, logs: list[str], rank_args: list[str]
) -> list[str]:
    return [
        "torchrun",
        f"--nnodes={nodes}",
        f"--nproc-per-node={config.cluster.ranks_per_node}",
        "--rdzv-backend=static",
        f"--node-rank={group_rank}",
        f"--master-addr={master.rpartition(':')[0]}",
        f"--master-port={master.rpartition(':')[2]}",
        "--max-restarts=0",
        f"--monitor-interval={config.recovery.monitor_interval_s}",
        *logs,
        "-m",
        "trainer",
        *rank_args,
    ]


def rank_environment(config: RunConfig, *, generation: int, token: str) -> dict[str, str]:
    """What the supervisor adds to the launcher's environment. The ranks inherit it."""
    return {
        names.ENV_GENERATION: str(generation),
        names.ENV_TOKEN: token,
    }
