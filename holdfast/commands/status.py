"""`holdfast status`: what a run is doing, on one screen. Changes nothing."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import names
from holdfast.goodput.locate import OUT_LINK, locate_run
from holdfast.last_failure import newest_failure
from holdfast.run_directory import RunDirectory, Terminal
from holdfast.terminal import terminal_id

if TYPE_CHECKING:  # the ledger imports numpy, which no other command of `holdfast` should wait for
    from holdfast.goodput.event import Event
    from holdfast.goodput.state import Status

RUNBOOK = "docs/operations.md"


def add_parser(subparsers: Any) -> None:
    """Declare the options."""
    parser = subparsers.add_parser(
        "status",
        help="show what a run is doing",
        description="State, progress, newest committed checkpoint, owner and last events of a run. On a cluster: "
        "kubectl get jobset,job,pod,node -n NAMESPACE -o json | holdfast status",
    )
    help_line = "the --out folder of a run, or a run directory; - or nothing: kubectl's JSON from standard input"
    parser.add_argument("directory", metavar="DIR", nargs="?", default=Path("-"), type=Path, help=help_line)


def main(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 through ConfigError."""
    if args.directory == Path("-"):
        from holdfast.commands import status_cluster

        return status_cluster.main(sys.stdin)
    from holdfast.goodput.state import read_status

    run_dir = locate_run(args.directory)
    status = read_status(run_dir)
    for name, value in summary(status, run_dir, _out_folder(args.directory, run_dir)):
        print(f"{name:<11} {value}")
    if status.news:
        print("last events")
        for age, event in status.news:
            print(f"  {duration(age):>8} ago  {_who(event):<19} {_what(event)}")
    return 0


def _out_folder(directory: Path, run_dir: Path) -> Path | None:
    """The --out folder of `holdfast run` that a person means by `directory`, also by its link `run`. None: a bare run
    directory, as on a cluster, which `holdfast resume` cannot take."""
    from holdfast.commands.run_folder import PROFILE  # imports the local runner

    if run_dir == directory / OUT_LINK or (directory / PROFILE).is_file():
        return directory
    above = directory.parent
    return above if directory.name == OUT_LINK and (above / PROFILE).is_file() else None


def summary(status: Status, run_dir: Path, out: Path | None) -> list[tuple[str, str]]:
    """The lines above the events, as (name, text) pairs. out: the --out folder; None for a bare run directory."""
    of = "" if status.steps is None else f" of {status.steps}"
    unknown = "none yet" if status.goodput is not None else "not known"
    rows = [
        ("state", f"\n{'':<11} ".join(_state(status, out))),
        ("step", unknown if status.step is None else f"{status.step}{of}"),
        ("attempt", status.attempt or unknown),
        ("committed", _committed(status)),
        ("goodput", _goodput(status)),
    ]
    failure = newest_failure(RunDirectory(run_dir))
    if failure is not None:
        rows.append(("failure", str(failure) + (f"\n{'':<11} its output: {failure.log}" if failure.log else "")))
    if status.owner is not None:
        o = status.owner
        rows.append(("owner", f"generation {o.generation}, host {o.host}, pod {o.pod}, pid {o.pid}"))
    return rows


def _state(status: Status, out: Path | None) -> list[str]:
    """What it is, and below that what can be done."""
    if status.state == "terminal" and status.terminal is not None:
        why = " ".join(status.terminal.reason.split())
        return [f"terminal ({status.terminal.code}): {why}", _after_terminal(status.terminal, out)]
    if status.state == "dead":
        return ["dead: neither complete nor terminal, and no live process owns it", _after_death(out)]
    return [status.state]


def _after_terminal(terminal: Terminal, out: Path | None) -> str:
    if out is not None:
        return f"to go on, when the cause is mended: holdfast resume {out} --clear-terminal"
    return (
        f'to go on, when the cause is mended: resume: {{clear_terminal: "{terminal_id(terminal)}"}} in the profile, '
        f"then delete the JobSet and apply job again ({RUNBOOK})"
    )


def _after_death(out: Path | None) -> str:
    if out is not None:
        return f"to go on: holdfast resume {out}"
    return (
        "on a cluster Kubernetes starts it again while its JobSet lives (kubectl get jobset); if that has failed or is "
        "gone, delete it and apply job again"
    )


def _goodput(status: Status) -> str:
    if status.goodput is None:
        return "not known: the log is of another version of Holdfast"
    return f"{status.goodput:.1%}" + (" so far" if status.state == "running" else "")


def _committed(status: Status) -> str:
    if status.committed is None:
        return "no step"
    age = "" if status.committed_age_s is None else f", {duration(status.committed_age_s)} ago"
    return f"step {status.committed}{age}"


def _who(event: Event) -> str:
    p = event.process
    if p.rank is not None:
        return f"rank {p.rank}"
    # `<job>-workers-1-0-x7k2p`: the job is the same for all of them.
    return re.sub(rf"^.*?-(?=({names.WORKERS}|{names.CONTROL})-)", "", p.pod) or p.source


def _what(event: Event) -> str:
    fields = " ".join(f"{key}={' '.join(str(value).split())}" for key, value in event.fields.items())
    text = f"{event.name} {fields}".rstrip()
    return text if len(text) <= 90 else text[:87] + "..."


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min`, `5.0 h`, `2 d`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"
