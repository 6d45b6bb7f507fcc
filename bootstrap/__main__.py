"""Entry: decides what an existing environment is worth, and does no more than is needed.

Environment: PYTHON names the interpreter, TORCH_INDEX an extra package index for torch (CPU-only builds), HOLDFAST_VENV
another folder than .venv.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping

from bootstrap.environment import Plan, finish, install, run, say
from bootstrap.interpreter import SUPPORTED, Interpreter, SetupError, choose, nvrx_way, probe

READY = ".holdfast-ready"
"""In the environment. Written last; the Makefile compares its date."""
UNFINISHED = ".holdfast-unfinished"
"""In the environment while it is worked on. What still has it was cut short and cannot be trusted."""
LOCK_TIMEOUT_S = 3600


def fingerprint(plan: Plan) -> str:
    """Changes when the requirements or this package do."""
    files = [plan.requirements, *sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def read_stamp(plan: Plan) -> Dict[str, Any]:
    """What the last complete set-up noted; empty if there was none."""
    try:
        stamp: Dict[str, Any] = json.loads((plan.venv / READY).read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def write_stamp(plan: Plan, inputs: str) -> None:
    """Note a complete set-up of these inputs, in one rename."""
    facts = {"inputs": inputs, "venv": str(plan.venv), "torch_index": plan.torch_index}
    draft = plan.venv / (READY + ".draft")
    draft.write_text(json.dumps(facts, ensure_ascii=False))
    draft.replace(plan.venv / READY)
    (plan.venv / UNFINISHED).unlink()


def why_remake(plan: Plan, stamp: Mapping[str, Any]) -> str:
    """Why an existing environment cannot be built upon; empty if it can."""
    if (plan.venv / UNFINISHED).exists():
        return "an earlier set-up was cut short"
    inside = probe(str(plan.venv_python))
    if inside is None:
        return "its Python does not run"
    if inside.version not in SUPPORTED:
        return "it has Python {}.{}".format(*inside.version)
    if "pip" in inside.lacks:
        return "it has no pip"
    if plan.python and choose(plan.python, "").version != inside.version:
        return "another Python version was asked for"
    if stamp and stamp.get("venv") != str(plan.venv):
        return f"it was moved here from {stamp.get('venv')}"
    if stamp and plan.torch_index and stamp.get("torch_index") != plan.torch_index:
        return "another TORCH_INDEX was asked for"
    return ""


def is_ready(plan: Plan, stamp: Mapping[str, Any]) -> bool:
    """Whether nothing needs doing. Asks the interpreter only if something about it was asked for."""
    if stamp.get("inputs") != fingerprint(plan) or stamp.get("venv") != str(plan.venv):
        return False
    if not os.access(str(plan.venv_python), os.X_OK) or (plan.venv / UNFINISHED).exists():
        return False
    return not (plan.python or plan.torch_index) or not why_remake(plan, stamp)


@contextmanager
def one_at_a_time(plan: Plan) -> Iterator[None]:
    """Two set-ups of one environment at once would destroy it."""
    lock = plan.root / ".cache" / "setup.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    waiting = False
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not waiting:
                    say("another set-up is running; waiting for it")
                waiting = True
            if time.monotonic() > deadline:
                raise SetupError(f"another set-up still holds {lock} after {LOCK_TIMEOUT_S} s; end it and try again")
            time.sleep(0.5)
        yield


def make_venv(plan: Plan) -> Interpreter:
    """An empty environment, marked unfinished, in place of whatever is there. SetupError before anything is touched."""
    interpreter = choose(plan.python, os.environ.get("PATH", ""))
    nvrx_way(interpreter)
    ours = [name for name in ("pyvenv.cfg", UNFINISHED) if (plan.venv / name).exists()]
    if plan.venv.exists() and any(plan.venv.iterdir()) and not ours:
        raise SetupError(f"{plan.venv} is not a virtual environment; move it away, or set HOLDFAST_VENV")
    plan.venv.mkdir(parents=True, exist_ok=True)
    # Marked before it is emptied: a removal that is cut short must not leave something that looks sound.
    (plan.venv / UNFINISHED).touch()
    for entry in plan.venv.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(str(entry))
        elif entry.name != UNFINISHED:
            entry.unlink()
    say("Python {}.{}, {} -> {}".format(*interpreter.version, interpreter.path, plan.venv))
    run([interpreter.path, "-I", "-m", "venv", str(plan.venv)])
    return interpreter


def set_up(plan: Plan) -> None:
    """Make, complete or accept the environment. Raises SetupError."""
    stamp = read_stamp(plan)
    if is_ready(plan, stamp):
        (plan.venv / READY).touch()
        return
    inputs = fingerprint(plan)  # taken now: an edit during the installation must count as a change
    plan = plan._replace(torch_index=plan.torch_index or stamp.get("torch_index"))
    reason = why_remake(plan, stamp) if plan.venv.exists() else ""
    if reason:
        say(f"{plan.venv} is made again: {reason}")
    fresh = bool(reason) or not plan.venv.exists()
    interpreter = make_venv(plan) if fresh else probe(str(plan.venv_python))
    assert interpreter is not None, "why_remake asked it a moment ago"
    (plan.venv / UNFINISHED).touch()
    if (plan.venv / READY).exists():
        (plan.venv / READY).unlink()
    try:
        install(plan, interpreter, quiet=not fresh)
        finish(plan)
    except SetupError:
        (plan.venv / UNFINISHED).unlink()  # pip has undone what it could not finish: the next run goes on from here
        raise
    write_stamp(plan, inputs)
    say("ready")


def main(environment: Mapping[str, str], root: Path) -> int:
    """Exit code: 0 ready, 1 with one message, 130 interrupted."""
    venv = Path(os.path.abspath(environment.get("HOLDFAST_VENV") or str(root / ".venv")))
    plan = Plan(root, venv, environment.get("PYTHON") or None, environment.get("TORCH_INDEX") or None)
    try:
        with one_at_a_time(plan):
            set_up(plan)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next run begins again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ, Path(__file__).resolve().parents[1]))
