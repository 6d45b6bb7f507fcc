"""What a supervisor knows of its own pod. Built once, at start; everything else in this package takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import RunConfig, names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import Owner, RunDirectory
from trainer.child import Standby
from trainer.departure import Departure

POLL_S = 0.1
"""How often a supervisor looks at its child and at its signals; both cost nothing."""
RECORDS_S = 0.5
"""How often the records in the run directory are read; each is a metadata request to the shared file system."""


@dataclass(frozen=True)
class Pod:
    """One pod: its role, its place in the job, and what it writes to."""

    role: str
    """`worker` or names.CONTROL."""
    config: RunConfig
    config_file: Path
    run: RunDirectory
    environment: Mapping[str, str]
    """Of this process; launchers and ranks inherit it."""
    name: str
    job: str
    jobset_attempt: int
    scratch: Path
    store: str
    """host:port of the control pod's store."""
    port: int
    departure: Departure
    log: EventLog
    standby: Standby | None = None
    """Forks ranks of a worker pod, in every generation (trainer/standby)."""

    @property
    def is_control(self) -> bool:
        """Whether this is the control pod."""
        return self.role == names.CONTROL

    def newer_here(self, generation: int) -> Owner | None:
        """The generation after `generation` of this pod's own job and JobSet attempt, or None: a change of size, which
        no pod ends for."""
        owner = self.run.owner()
        ours = owner is not None and owner.job == self.job and owner.jobset_attempt == self.jobset_attempt
        return owner if ours and owner is not None and owner.generation > generation else None

    @classmethod
    def from_environment(
        cls, role: str, config: RunConfig, config_file: Path, run: RunDirectory, environment: Mapping[str, str]
    ) -> Pod:
        """Read what the manifest has set. Raises KeyError for a variable that is missing."""
        name, scratch = environment[names.ENV_POD], Path(environment[names.ENV_SCRATCH])
        store = environment[names.ENV_STORE]
        port = int(store.rpartition(":")[2])
        return cls(
            role=role,
            config=config,
            config_file=config_file,
            run=run,
            environment={**environment, **_compiler_cache(config, scratch)},
            name=name,
            job=environment[names.ENV_JOB],
            jobset_attempt=int(environment[names.ENV_JOBSET_ATTEMPT]),
            scratch=scratch,
            store=store,
            port=port,
            departure=Departure(config, run, scratch, port),
            log=EventLog(run.events, "supervisor", role=role, pod=name, node=environment[names.ENV_NODE]),
        )


def _compiler_cache(config: RunConfig, scratch: Path) -> dict[str, str]:
    """Where compiled code is kept: longer than the rank that compiled it, so that a restart in this pod does not."""
    if not config.training.compile:
        return {}
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled"),
        "TRITON_CACHE_DIR": str(scratch / "compiled" / "triton"),
    }
