"""The folder of a run: one owner at a time, and no process of a former owner."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.config.problems import ConfigError, Problem
from holdfast.local.processes import processes_with_token
from holdfast.local.shim import kill_all
from holdfast.local.volumes import Layout

LOCK = "run.lock"
SWEEP_LIMIT_S = 10.0


class RunFolder:
    """Ownership of a folder, from construction to close(). Also the token that marks every process of the run."""

    def __init__(self, out: Path) -> None:
        """Take the folder, which may be new. Raises ConfigError if it is owned or holds files that are no run."""
        if platform.system() != "Linux":
            why = "the local runner relies on Linux (/proc, prctl)"
            raise ConfigError([Problem("platform", platform.system(), why, "use Linux, or check and synthesize only")])
        self.path = out.absolute()
        _require_run_folder(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                [Problem("--out", str(out), str(error.strerror), "name a folder that can be written")]
            ) from None
        former = self._take()
        _end_processes(former.get("token"))
        _remove_alias(former.get("alias"))
        self._remove_leftovers()
        self.token = os.urandom(8).hex()
        self.layout = Layout(self.path, Path(tempfile.mkdtemp(prefix="hf-", dir=_short_folder())))
        self._write(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=time.time(),
            token=self.token,
            alias=str(self.layout.alias),
        )

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is left of the run's processes, and let others have the folder."""
        _end_processes(self.token)
        _remove_alias(str(self.layout.alias))
        os.close(self._lock)

    def _take(self) -> dict[str, Any]:
        """Lock the folder; what its former owner had written."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._read()
            os.close(self._lock)
            age = int(time.time() - owner.get("since", time.time()))
            why = f"a run owns it: host {owner.get('host')}, pid {owner.get('pid')}, for {age} s"
            raise ConfigError(
                [Problem("--out", str(self.path), why, "end that run first, or use another folder")]
            ) from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        try:
            record = json.loads(os.pread(self._lock, 65536, 0) or b"{}")
        except ValueError:
            return {}
        return record if isinstance(record, dict) else {}

    def _write(self, **record: Any) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(record).encode() + b"\n", 0)

    def _remove_leftovers(self) -> None:
        """Pod folders of a run that was killed. Logs stay."""
        pods = self.path / "pods"
        for folder in pods.iterdir() if pods.is_dir() else ():
            if folder.name != "logs":
                shutil.rmtree(folder, ignore_errors=True)


def _require_run_folder(out: Path) -> None:
    if out.is_dir() and not (out / LOCK).exists() and any(out.iterdir()):
        why = "it is a folder with files that no run has made"
        raise ConfigError([Problem("--out", str(out), why, "name a new folder, or that of an earlier run")])


def _short_folder() -> str | None:
    """For links that must stay short; TMPDIR may be long."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def _end_processes(token: str | None) -> None:
    """Kill whatever carries the token. Normally nothing does: shims end with their runner."""
    deadline = time.monotonic() + SWEEP_LIMIT_S
    while token and (left := processes_with_token(token)):
        if time.monotonic() > deadline:
            raise ConfigError(
                [Problem("processes", left, "they belong to this folder's run and cannot be killed", "end them")]
            )
        kill_all(left)
        time.sleep(0.02)


def _remove_alias(alias: str | None) -> None:
    """It holds links only; what they point to stays."""
    if alias and Path(alias).name.startswith("hf-"):
        shutil.rmtree(alias, ignore_errors=True)
