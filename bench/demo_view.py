"""What one sees while the demo runs: a live progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.commands.run_follow import TrainingEvent
from holdfast.commands.run_lines import Lines
from holdfast.local.report import Happening

Event = Happening | TrainingEvent


@contextmanager
def view(steps: int, console: Console) -> Iterator[Callable[[Event], None]]:
    """An observer of a run, for as long as the body runs."""
    if not console.is_terminal:
        yield Lines(steps)
        return
    columns = [TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=steps)
        lines = Lines(steps, write=lambda text: progress.console.print(escape(text), highlight=False))

        def observe(event: Event) -> None:
            lines(event)
            if isinstance(event, TrainingEvent):
                _advance(progress, bar, event)

        yield observe


def _advance(progress: Progress, bar: object, event: TrainingEvent) -> None:
    """Move the bar; a rollback moves it back."""
    match event.name:
        case "step" if event.rank == 0 and "error" not in event.fields:
            progress.update(bar, completed=event.step, description="training")  # type: ignore[arg-type]
        case "fault":
            progress.update(bar, description=f"[red]{event.fields.get('kind')}")  # type: ignore[arg-type]
        case "restore":
            progress.update(bar, completed=event.step, description="restored")  # type: ignore[arg-type]
