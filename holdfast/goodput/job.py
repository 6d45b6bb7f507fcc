"""What a run was configured to be, as far as the accounting needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.config import ConfigError, RunConfig, load_file, names
from holdfast.config.flops import flops_per_token, peak_flops_per_s


@dataclass(frozen=True)
class Job:
    """The job at its full size."""

    ranks: int
    """Training processes: nodes x ranks per node."""
    flops_per_step: float
    """Operations of forward and backward over the global batch."""
    peak_flops_per_s: float | None
    """What one rank's GPU can do at most. None on a CPU, and where the peak is not known."""


def job_of(config: RunConfig) -> Job:
    """The job that a configuration describes."""
    length = config.data.sequence_length
    tokens = config.training.global_batch_size * length
    return Job(config.world_size, tokens * flops_per_token(config.model, length), peak_flops_per_s(config))


def read_job(run_dir: Path) -> Job | None:
    """The job of the run's newest generation; None without a readable run.yaml."""
    try:
        return job_of(load_file(run_dir / names.RUN_YAML))
    except ConfigError:
        return None
