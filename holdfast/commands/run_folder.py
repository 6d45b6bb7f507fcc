"""What `holdfast run` and `holdfast resume` do to a folder before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.config import ConfigError, Problem, RunConfig, dump, names
from holdfast.goodput.locate import OUT_LINK
from holdfast.local.volumes import Layout
from holdfast.run_directory import RunDirectory
from holdfast.terminal import set_aside

RUNS = "runs"
PROFILE = "profile.yaml"
"""In the folder of a run: the config it was last started with."""
_OF_THE_RUN = ("pods", "nodes", "manifest", PROFILE, OUT_LINK)


def run_directory(layout: Layout, config: RunConfig) -> RunDirectory:
    """The run directory as it lies on this machine: what --run-dir is for the pods."""
    inside = config.run_dir.relative_to(config.storage.mount_path)
    return RunDirectory(layout.claim(config.storage.claim) / inside)


def prepare(out: Path, run: RunDirectory, config: RunConfig) -> Path:
    """Write the config into the folder and make <out>/run lead to the run directory; the config's path.

    Raises ConfigError if the folder cannot be written.
    """
    link, profile = out / OUT_LINK, out / PROFILE
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        profile.write_text(dump(config))
        if link.is_symlink():
            link.unlink()
        link.symlink_to(run.path.relative_to(out), target_is_directory=True)
    except OSError as error:
        fix = "free space, repair its rights, or use another folder"
        raise ConfigError([Problem("--out", str(out), f"it cannot be written: {error}", fix)]) from None
    return profile


def went_back(layout: Layout, last: RunConfig) -> bool:
    """Whether the last start has obeyed the resume.step of its config: the next one is not to go back once more."""
    run = run_directory(layout, last)
    owner, step = run.owner(), last.resume.step
    if owner is None or step is None:
        return False
    return (run.attempts / names.resumed_record(owner.incarnation, step)).exists()


def committed(out: Path) -> list[Path]:
    """Folders of the committed checkpoints of every run below the folder, oldest step first."""
    marks = out.glob(f"*/{RUNS}/*/{names.CHECKPOINTS}/{names.STEP_PREFIX}*/{names.COMMITTED}")
    return sorted(mark.parent for mark in marks if names.step_of(mark.parent.name) is not None)


def clear_run(out: Path, *, sure: bool) -> None:
    """Delete the run, but nothing else in the shared storage. Raises ConfigError to protect committed checkpoints."""
    there = committed(out)
    if there and not sure:
        listed = ", ".join(str(path) for path in there)
        fix = "add --yes to delete them, or use another --out"
        raise ConfigError([Problem("--fresh", True, f"it would delete committed checkpoints: {listed}", fix)])
    for path in [*out.glob(f"*/{RUNS}"), *(out / name for name in _OF_THE_RUN)]:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)


def close_terminal(run: RunDirectory, *, clear: bool) -> None:
    """Set the TERMINAL record aside as TERMINAL.<n>.json. Raises ConfigError if it is there and must not be."""
    terminal = run.terminal()
    if terminal is None:
        return
    record = run.path / names.TERMINAL
    if not clear:
        why = f"the run has ended for good with exit code {terminal.code}: {terminal.reason}"
        raise ConfigError([Problem("DIR", str(record), why, "mend the cause, then add --clear-terminal")])
    aside = set_aside(run)
    if aside is not None:
        print(f"{names.TERMINAL} was set aside as {aside.name}: {terminal.reason}")
