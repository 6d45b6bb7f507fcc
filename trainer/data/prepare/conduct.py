"""Spreads the pieces over processes, keeps what is done, and finishes the folder."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.config import ConfigError, Problem
from holdfast.run_directory import read_json
from trainer.data import tokenizer
from trainer.data.hub import hub_problem, may_pass
from trainer.data.prepare import piece, room
from trainer.data.prepare.failures import WorkFailed, hub_failure, said, writing_failure
from trainer.data.prepare.inputs import SOURCE
from trainer.data.prepare.pieces import Piece
from trainer.data.prepare.plan import Plan, Request, manifest, settle, write_manifest
from trainer.data.prepared import MANIFEST
from trainer.data.tokenizer import Tokenizer, token_type

PR_SET_PDEATHSIG = 1
TRIES = 4
"""Of a piece of the hub's, whose network may fail for a while."""
FIRST_WAIT_S = 5.0
ABANDONED_S = 3600.0
"""Where nothing tells whether somebody still writes a file: it belongs to a dead process after so long."""
_LOOK_S = 0.5
TOKENIZER = "--tokenizer"
_NO_FOLDER = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR),
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
)
"""Why a folder cannot be made, and could not be made later either."""
Tell = Callable[[dict[str, Any]], object]
"""Gets {total, done} bytes once, then {advance}."""


def prepare(request: Request, tell: Tell) -> dict[str, Any]:
    """Make or finish a prepared folder; {tokens, documents, pieces, kept, left_out, fingerprint, bytes}.

    Raises ConfigError for bad input, WorkFailed for anything that a second run may cure.
    """
    encoder = _encoder(request)
    _make_folder(request.out)
    try:
        with _alone(request.out) as certain:
            _sweep(request.out, 0.0 if certain else ABANDONED_S)
            return _under_lock(request, encoder, tell)
    except OSError as error:
        raise writing_failure(error, request.out) from None


def _encoder(request: Request) -> Tokenizer:
    """The tokenizer. Raises ConfigError, or WorkFailed if it is one of the hub's and the hub cannot be asked now."""
    try:
        return tokenizer.load(request.tokenizer, request.storage)
    except ConfigError as error:
        if error.__cause__ is None or not may_pass(error.__cause__):
            raise
        raise WorkFailed(replace(error.problems[0], key=TOKENIZER)) from None


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise WorkFailed(said(error)) from None
        fix = "name a folder that can be made"
        problem = Problem("--to", str(out), f"it cannot be made ({error.strerror or error})", fix)
        raise ConfigError([problem], "data prepare") from None


def _under_lock(request: Request, encoder: Tokenizer, tell: Tell) -> dict[str, Any]:
    plan = settle(request, encoder)
    size = token_type(encoder.vocabulary).itemsize
    marks = {number: mark for number in range(len(plan.pieces)) if (mark := piece.done(number, request.out, size))}
    kept = len(marks)
    left = [number for number in range(len(plan.pieces)) if number not in marks]
    _check_room([plan.pieces[number] for number in left], request, encoder)
    tell({"total": sum(one.weight for one in plan.pieces), "done": sum(plan.pieces[n].weight for n in marks)})
    if left:
        marks |= _make(plan, left, tell)
    content = manifest(plan, encoder, [marks[number] for number in range(len(plan.pieces))])
    if read_json(request.out / MANIFEST) != content:
        write_manifest(request.out, content)
    return {
        "tokens": content["tokens"],
        "documents": content["documents"],
        "bytes": content["tokens"] * size + content["documents"] * 8,
        "fingerprint": content["fingerprint"],
        "pieces": len(plan.pieces),
        "kept": kept,
        "left_out": plan.left_out,
    }


def _check_room(left: list[Piece], request: Request, encoder: Tokenizer) -> None:
    try:
        room.check(left, request.out, encoder, request.text_key)
    except (ConfigError, WorkFailed):
        raise
    except Exception as error:  # the network has errors of many libraries
        if not any(one.file.hub for one in left):
            raise
        raise hub_failure(error, SOURCE, request.source) from None


def _make(plan: Plan, left: list[int], tell: Tell) -> dict[int, piece.Mark]:
    context = multiprocessing.get_context("spawn")
    progress = context.RawArray("q", len(plan.pieces))  # no lock: a killed worker could take it with it
    workers = min(plan.request.workers, len(left))
    start = (os.getpid(), plan.request, progress)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=start)
    marks: dict[int, piece.Mark] = {}
    try:
        waiting: dict[Future[Outcome], int] = {pool.submit(_work, n, plan.pieces[n]): n for n in left}
        told = 0
        while waiting:
            ready, _ = wait(waiting, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in ready:
                number = waiting.pop(future)
                marks[number] = _judged(future, plan.pieces[number])
            now = sum(progress)
            tell({"advance": now - told})
            told = now
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return marks


def _judged(future: Future[Outcome], work: Piece) -> piece.Mark:
    try:
        outcome = future.result()
    except BrokenProcessPool:
        raise WorkFailed("a process was killed, most likely for want of memory: use fewer --workers") from None
    if outcome.problems:
        raise ConfigError(outcome.problems, "data prepare")
    if outcome.mark is None:
        raise WorkFailed(outcome.failure)
    return outcome.mark


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop the workers now: what they write has no name yet."""
    processes = list((pool._processes or {}).values())  # the pool has no public way to end a piece that runs
    manager: Any = pool._executor_manager_thread
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
    for process in processes:
        process.join(10)
    if (
        manager is not None
    ):  # else the interpreter's end may wake it through a pipe that it has just closed: a traceback
        manager.join(10)


# --- in a worker ---


@dataclass(frozen=True)
class Outcome:
    """Of one piece: its mark, or what is wrong with the input, or why it failed. ConfigError does not pickle."""

    mark: piece.Mark | None = None
    problems: tuple[Problem, ...] = ()
    failure: str = ""


class _Worker:
    """What a worker keeps from one piece to the next."""

    request: Request
    encoder: Tokenizer
    progress: Any
    unfit: Outcome | None
    """Of every piece of a worker that has no tokenizer."""


def _begin(parent: int, request: Request, progress: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are what is parallel
    _Worker.request, _Worker.progress = request, progress
    _Worker.unfit = _load(request)


def _load(request: Request) -> Outcome | None:
    """Keeps the tokenizer; or what is wrong with it. An error that left the initializer would break the pool, and look
    as if the process had been killed."""
    try:
        _Worker.encoder = _encoder(request)
    except ConfigError as error:
        return Outcome(problems=error.problems)
    except Exception as error:  # noqa: BLE001 - of many libraries
        return Outcome(failure=str(error) if isinstance(error, WorkFailed) else f"tokenizer: {said(error)}")
    return None


def _work(number: int, work: Piece) -> Outcome:
    request = _Worker.request
    if _Worker.unfit is not None:
        return _Worker.unfit

    def tell(done: int) -> None:
        _Worker.progress[number] = done

    tries = TRIES if work.file.hub else 1
    for attempt in range(1, tries + 1):
        try:
            mark = piece.make(number, work, request.out, _Worker.encoder, request.text_key, tell)
        except ConfigError as error:
            return Outcome(problems=error.problems)
        except Exception as error:  # noqa: BLE001 - the network has errors of many libraries
            lasting = work.file.hub and not may_pass(error)
            problem = hub_problem(error, SOURCE, request.source) if lasting else None
            if problem is not None:
                return Outcome(problems=(problem,))
            if attempt == tries:
                return Outcome(failure=f"{work.file.name}: {said(error)}")
            time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
        else:
            tell(work.weight)
            return Outcome(mark=mark)
    raise AssertionError("the last try returns")


# --- the folder ---


@contextmanager
def _alone(out: Path) -> Iterator[bool]:
    """Refuse a second preparation into the same folder. Without file locks (some Lustre mounts) both would run, and
    write the same: every file appears whole, under its name, by a rename. Yields whether there are locks."""
    certain = True
    with (out / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            why = f"another preparation is writing to it ({file.read().strip() or 'unknown process'})"
            fix = "wait until it is done, or stop it"
            # Not bad input: the pod that is made again after a lost node finds its lock until the file server drops it.
            raise WorkFailed(Problem("--to", str(out), why, fix)) from None
        except OSError:
            certain = False
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        yield certain


def _sweep(out: Path, older_than_s: float) -> None:
    """Remove what killed processes were writing: files that nobody has written to for so long."""
    for path in out.glob(f"{piece.TEMPORARY}*"):
        if time.time() - path.stat().st_mtime >= older_than_s:
            path.unlink(missing_ok=True)
