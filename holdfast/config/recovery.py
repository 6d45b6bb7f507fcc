"""The sections for when something breaks: recovery layers and their limits, resume, failure rates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from holdfast.config.elastic import Elasticity
from holdfast.config.section import Real, Seconds, Section, Whole
from holdfast.config.standby import Standby
from holdfast.config.stop_rules import StopRules
from holdfast.config.watching import Watching


class Recovery(StopRules, Watching, Elasticity, Standby):
    """The four layers and their limits. Every timeout of the job is here."""

    in_process: bool = False
    """Layer 1: NVRx inprocess.Wrapper around train(attempt)."""
    in_job: bool = True
    """Layer 2: ft_launcher with rank monitors. Off: torchrun without restarts."""
    spares: Annotated[Whole, Field(ge=0, le=64)] = 1
    """Hot-spare nodes beside cluster.nodes."""
    replacement_budget: Annotated[Whole, Field(ge=0, le=1024)] = 16
    """Unhealthy nodes that one generation may replace. NVRx counts them for ever and closes the rendezvous beyond
    nodes + spares + budget."""
    max_generations: Annotated[Whole, Field(ge=0, le=1000)] = 20
    """JobSet restarts (all pods new) before the JobSet fails."""
    max_in_job_restarts: Annotated[Whole, Field(ge=0, le=100_000)] = 1000
    """A high backstop for ft_launcher. The real stop rules are same_step_limit and
    max_restarts_without_progress."""
    max_in_process_restarts: Annotated[Whole, Field(ge=1, le=100_000)] = 100
    """Restarts inside one process before it hands over to layer 2. After five attempts in a row that have finished no
    step it does so too."""

    first_section_timeout_s: Seconds = 120
    """From the start of a rank process until the rank monitor has its first section (interpreter, import of torch)."""
    init_section_timeout_s: Seconds = 600
    """Process group, model build, data."""
    restore_section_timeout_s: Seconds = 900
    """Loading a checkpoint."""
    step_section_timeout_s: Seconds = 300
    """One optimizer step, compilation apart."""
    checkpoint_section_timeout_s: Seconds = 1200
    """Staging, and waiting for the previous save."""
    out_of_section_timeout_s: Seconds = 120
    """Time between sections."""
    warmup_steps: Annotated[Whole, Field(ge=0)] = 2
    """Steps after a restart for which the step limit is the init limit (lazy initialization, compilation), and layer 1
    takes nothing for a hang."""

    in_process_soft_timeout_s: Seconds = 60
    """No progress for so long: the step is aborted and restarted in process. Not before warmup_steps are over; until
    then the sections' limits count."""
    in_process_hard_timeout_s: Seconds = 90
    """No progress for so long: the process is killed, and layer 2 takes over. Likewise."""
    in_process_heartbeat_timeout_s: Seconds = 30
    """A rank whose monitor process is silent for so long counts as lost."""
    in_process_barrier_timeout_s: Seconds = 120
    """Ranks wait for one another at a restart at most so long."""
    in_process_interval_s: Seconds = 0.2
    """Poll interval of the in-process monitors."""
    process_group_timeout_s: Seconds = 600
    """Timeout of a collective. NCCL: above the hard timeout. Gloo, which cannot be aborted: below the soft one."""

    monitor_interval_s: Seconds = 0.2
    """How often the launcher looks at its ranks."""
    workload_check_interval_s: Annotated[Real, Field(gt=0, le=0.5)] = 0.5
    """How often the rank monitor looks at its timeouts."""
    workers_stop_timeout_s: Annotated[Whole, Field(ge=1)] = 15
    """SIGTERM to SIGKILL when the launcher stops its ranks for a restart."""
    term_timeout_s: Annotated[Whole, Field(ge=1)] = 600
    """SIGTERM to SIGKILL of the ranks when the pod is asked to end; in it they finish at most two steps and save. Below
    the grace period."""
    leave_before_s: Seconds = 2520
    """All ranks save and leave so long before cluster.capacity_ends_at: 2 minutes before EKS drains the nodes of a
    Capacity Block, one by one."""
    join_timeout_s: Annotated[Whole, Field(ge=10)] = 3600
    """How long an open rendezvous waits for its nodes; at least the time to obtain a node."""
    owner_lease_s: Seconds = 30
    """An owner of the run directory that has not renewed its lease for so long is dead; so is a worker pod that has not
    said for so long that it is there."""


class Resume(Section):
    """What may differ from the checkpoint on resume."""

    allow_changes: tuple[str, ...] = ()
    """Dotted keys (or sections) that may differ, e.g. `training.learning_rate`."""
    step: Annotated[Whole, Field(ge=0)] | None = None
    """Resume exactly this committed step; if it does not exist, stop and list those that do."""
    must_resume: bool = False
    """Refuse a fresh start when no committed checkpoint exists."""
    clear_terminal: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")] | None = None
    """Id of the TERMINAL record whose cause is mended, as its message says: the control pod sets that record aside and
    the run goes on. Any other record still ends it. For clusters; `holdfast resume --clear-terminal` needs no id."""


class Reliability(Section):
    """What is assumed about failures; used for planning only."""

    failure_rate: str = "rsc1-measured"
    """Preset from holdfast/config/failure_rates.py. The default has a software part: a rate of node hardware alone says
    nothing of a job on 128 nodes or fewer, and `holdfast plan` then gives no number."""
