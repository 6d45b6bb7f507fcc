"""What the control pod tells of the run: goodput by bucket, and what follows from the config.

No rank can tell it: where the time went is known only when the logs of all ranks are laid side by side, and that takes
seconds and memory which neither a training step nor the pod that holds the store may lose. So this is a process of its
own (`python -m trainer.metrics.goodput`), and each accounting is a child of it, `holdfast report --json`, with the
lowest priority, a time limit, a memory limit, and the first place on the kernel's list when memory runs out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast import metrics
from holdfast.config import load_file, names
from holdfast.local.shim import die_with_parent
from holdfast.metrics import Metric
from trainer.metrics.families import family
from trainer.metrics.serve import serve

logger = logging.getLogger(__name__)

SHARE = 10
"""Between two accountings passes at least so many times as long as the last one took."""
SPARING = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS"), "1"),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Thread pools as large as the host would take memory for each of its cores. Arrow's own pool sets 1 GiB aside at its
first use, which counts against the limit: within one of 1200 MiB, 84 MiB were refused when 150 were in use.
"""
MIB = 2**20


class GoodputMetrics:
    """The last accounting that went well, and how many did not. `account` writes, the server's thread reads."""

    def __init__(self, run: str, world_size: int) -> None:
        self._run = run
        self._values: dict[Metric, float] = {
            metrics.WORLD_SIZE: world_size,
            metrics.GOODPUT_TIME: time.time(),
            metrics.ACCOUNTING_FAILURES: 0,
        }
        self._buckets: dict[str, float] = {}
        self._measures: dict[str, float] = {}

    def account(self, command: Sequence[str], limit_s: float, memory_bytes: int) -> float:
        """Run the command, which prints a ledger's summary, and take it over. Returns the seconds that it took."""
        began, start = time.time(), time.monotonic()
        try:
            summary = _summary(command, limit_s, memory_bytes)
            buckets = {str(bucket): float(seconds) for bucket, seconds in summary["buckets"].items()}
            measures = {measure: float(summary[measure]) for measure in metrics.MEASURES}
            wall = float(summary["wall_s"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._values[metrics.ACCOUNTING_FAILURES] += 1
            logger.warning("goodput was not accounted: %s", _why(error))
        else:
            self._buckets, self._measures = buckets, measures
            self._values |= {metrics.WALL_SECONDS: wall, metrics.GOODPUT_TIME: began}
        return time.monotonic() - start

    def collect(self) -> Iterator[Any]:
        """Every metric of the control pod, for prometheus_client."""
        for metric in metrics.METRICS:
            if metric.by != "control":
                continue
            if metric in (metrics.BUCKET_SECONDS, metrics.GOODPUT):
                parts = self._buckets if metric is metrics.BUCKET_SECONDS else self._measures
                yield family(metric, {(self._run, part): value for part, value in parts.items()})
            else:
                value = self._values.get(metric)
                yield family(metric, {} if value is None else {(self._run,): value})


def _summary(command: Sequence[str], limit_s: float, memory_bytes: int) -> Any:
    def limited() -> None:
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    done = subprocess.run(
        command,
        env={**os.environ, **SPARING},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=True,
    )
    return json.loads(done.stdout)


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than metrics.goodput_limit_s={error.timeout:g}"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or "").strip().splitlines()
        return f"exit code {error.returncode}: {said[-1] if said else 'it said nothing'}"
    return f"{error}" if isinstance(error, OSError) else f"it printed no ledger ({error!r})"


def give_way() -> None:
    """Run when nothing else wants to, and be the first to go when memory runs out. Children inherit both."""
    os.nice(19)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError as error:
        logger.warning("the accounting keeps its place on the list for want of memory: %s", error)


def main() -> None:
    """Serve and account until the pod's supervisor ends this process."""
    parser = argparse.ArgumentParser(prog="python -m trainer.metrics.goodput")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--world-size", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {names.CONTROL} goodput %(levelname)s %(message)s", stream=sys.stdout
    )
    give_way()
    config = load_file(arguments.config)
    seen = GoodputMetrics(config.name, arguments.world_size)
    serve(arguments.address, seen)
    command = [sys.executable, "-m", "holdfast", "report", str(arguments.run_dir), "--json"]
    limit_s, memory_bytes = config.metrics.goodput_limit_s, config.metrics.goodput_memory_mib * MIB
    took_s = 0.0
    while True:
        # First: at the start of a pod there is nothing to account, and others want the processor.
        time.sleep(max(config.metrics.goodput_interval_s, SHARE * took_s))
        took_s = seen.account(command, limit_s, memory_bytes)


if __name__ == "__main__":
    main()
