"""Which failures the same command may get past later, and which stay until somebody mends the input."""

from __future__ import annotations

import errno
from pathlib import Path

from holdfast.config import ConfigError, Problem
from trainer.data.hub import hub_problem, may_pass, without_token

_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class WorkFailed(Exception):
    """The work ended without a fault of the input: a disk, the network, a killed process. It can be gone on with, so
    that a pod which ends so is made again (k8s/data_job.py)."""


def hub_failure(error: BaseException, key: str, name: str) -> ConfigError | WorkFailed:
    """What to raise for a failure while something of the hub, or of this machine, was read. key, name: as hub_problem
    takes them. What nobody knows may pass too: a wrong answer of that kind costs a few retries, the other one a night.
    """
    problem = hub_problem(error, key, name)
    if may_pass(error):
        return WorkFailed(problem or f"{key} = {name!r}: {said(error)}")
    return ConfigError([problem], "data prepare") if problem else WorkFailed(f"{key} = {name!r}: {said(error)}")


def writing_failure(error: OSError, out: Path) -> ConfigError | WorkFailed:
    """What to raise for a failure of the disk. A folder in which one may not write stays so."""
    if error.errno not in _NOT_ALLOWED or not _is_below(error.filename, out):
        return WorkFailed(said(error))
    why = f"one may not write in it ({error.strerror}: {error.filename})"
    fix = "name a folder in which this user may write, or have its owner allow it"
    return ConfigError([Problem("--to", str(out), why, fix)], "data prepare")


def said(error: BaseException) -> str:
    """The error in one line, without the hub's token."""
    text = (str(error).strip().splitlines() or [""])[0]
    return without_token(text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}")


def _is_below(name: object, out: Path) -> bool:
    return isinstance(name, str | Path) and Path(name).is_relative_to(out)
