"""The ranks of a bench as processes: why one failed, one that does not die, and how they leave."""

from __future__ import annotations

import math
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from bench.demo import ROOT
from bench.rank_processes import Ended, fits_not, run_ranks, telling

NO_ROOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_the_line_that_says_why_is_found_in_a_long_output() -> None:
    text = "Traceback\n  File x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\nterminate called\nlater Error: y"
    assert telling(text).startswith("torch.OutOfMemoryError")


@pytest.mark.parametrize(
    "said",
    [
        NO_ROOM,
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Cuda failure 2 'out of memory'",
    ],
)
def test_a_full_gpu_is_known_by_what_torch_cuda_cublas_and_nccl_say_of_it(said: str) -> None:
    text = f"Traceback\n{said}\ntorch.distributed.DistBackendError: NCCL error in: x, unhandled cuda error\nBye"
    assert telling(text) == said and fits_not(telling(text))
    assert not fits_not("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float) -> tuple[Ended, str]:
    (tmp_path / "one_rank.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return run_ranks("one_rank", "", 1, limit_s, cuda=False)


def test_a_rank_that_does_not_die_is_reported_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Undead(subprocess.Popen[bytes]):
        """As one that the driver of a GPU keeps: gone for `wait` only when nobody has a limit."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                super().wait(10)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Undead)
    ended, _ = started(tmp_path, monkeypatch, "import time\ntime.sleep(60)", 0.5)
    assert not ended.well and ended.late
    assert ended.why.startswith("the limit of 0 s passed") and "still there 60 s after SIGKILL: rank 0" in ended.why


def test_a_rank_that_takes_long_to_die_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    class Slow(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waits.append(timeout or math.inf)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    ended, _ = started(tmp_path, monkeypatch, "import time\ntime.sleep(60)", 0.5)
    assert not ended.well and "still there" not in ended.why
    assert 50 < waits[-1] <= 60


def test_a_failing_rank_says_why_and_ends_at_once_though_a_thread_of_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import threading, time
        from bench.arms.leaving import leave_after

        def main():
            threading.Thread(target=time.sleep, args=(600,)).start()
            print("begun")
            raise ValueError("no such shape")

        leave_after(main)
    """
    ended, said = started(tmp_path, monkeypatch, code, 60.0)
    assert said == "begun\n" and not ended.late
    assert ended.why == "rank 0 ended with code 1: ValueError: no such shape"


def test_all_ranks_of_the_three_benches_leave_so() -> None:
    for name in ("throughput", "save_efficiency", "memory"):
        text = (ROOT / "bench" / "arms" / f"{name}_rank.py").read_text(encoding="utf-8")
        assert text.endswith('if __name__ == "__main__":\n    leave_after(main)\n')
