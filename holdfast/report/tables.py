"""HTML tables and lists. Text goes in, HTML comes out: everything is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from holdfast.goodput.report import MOST_LINES


class Html(str):
    """Text that is HTML already and must not be escaped again. What is added is escaped, unless it is HTML too."""

    def __add__(self, other: str) -> Html:
        return Html(super().__add__(text(other)))


def text(value: str) -> Html:
    """A value from anywhere (a log, a config, a file name) as HTML."""
    return value if isinstance(value, Html) else Html(escape(value, quote=True))


def swatch(colour: str) -> Html:
    """A small square of this colour; only decoration, the name stands beside it."""
    return Html(f'<i style="background:{colour}" aria-hidden="true"></i>')


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption_seen: bool = False) -> Html:
    """A table that scrolls by itself where the page is too narrow, by keyboard too. The first column names its row.

    columns: those that start with `<` hold numbers. Screen readers read the caption; caption_seen shows it too.
    """
    numeric = [column.startswith("<") for column in columns]
    head = "".join(
        f'<th scope="col"{_number(is_number)}>{text(column.removeprefix("<"))}</th>'
        for column, is_number in zip(columns, numeric, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, numeric)}</tr>" for row in rows)
    hidden = "" if caption_seen else ' class="unseen"'
    return Html(
        f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption{hidden}>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def bullets(lines: Iterable[str], most: int = MOST_LINES) -> Html:
    """A list, cut after `most` lines with the number of those left out."""
    every = list(lines)
    if len(every) > most:
        every = [*every[:most], f"... and {len(every) - most} more"]
    return Html("<ul>" + "".join(f"<li>{text(line)}</li>" for line in every) + "</ul>") if every else Html("")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """(name, colour) of each thing in a chart. It wraps on any width, which a chart's own legend does not."""
    items = "".join(f"<li>{swatch(colour)}{text(name)}</li>" for name, colour in entries)
    return Html(f'<ul class="legend" aria-label="Colours">{items}</ul>')


def details(summary: str, inside: str) -> Html:
    """Something that is shown when it is asked for, and in print."""
    return Html(f"<details><summary>{text(summary)}</summary>{text(inside)}</details>")


def precise(duration_s: float | None) -> str:
    """Seconds with three digits that count: what a save costs a step may be a millisecond. A dash for None."""
    return "-" if duration_s is None else f"{duration_s:,.0f}" if duration_s >= 100 else f"{duration_s:.3g}"


def middle(values: Sequence[float]) -> float | None:
    """The median, None of nothing."""
    return median(values) if values else None


def _cells(row: Sequence[str], numeric: Sequence[bool]) -> str:
    cells = [f'<th scope="row">{text(row[0])}</th>']
    cells += [
        f"<td{_number(is_number)}>{text(cell)}</td>" for cell, is_number in zip(row[1:], numeric[1:], strict=True)
    ]
    return "".join(cells)


def _number(is_number: bool) -> str:
    return ' class="n"' if is_number else ""
