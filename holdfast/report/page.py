"""The report as one HTML file: style, words, tables, figures and plotly.js inside; nothing is loaded from anywhere.

A content security policy says so to the browser, too: only the two scripts of this file may run, known by their
digests, and nothing may be fetched. So even a log line that found a way out of its escaping could neither run nor call.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from plotly.offline import get_plotlyjs

from holdfast.config import ConfigError, Problem
from holdfast.report.chart import spoken
from holdfast.report.comparison_section import comparison_sections, what_if_section
from holdfast.report.palette import ROLES
from holdfast.report.run import ReportedRun
from holdfast.report.run_sections import Section, run_sections, tiles
from holdfast.report.series import Steps, find_steps
from holdfast.report.tables import Html, text
from holdfast.report.what_if import NoWhatIf, WhatIf
from holdfast.run_directory import write_atomically


def html_page(runs: Sequence[ReportedRun], *, title: str = "", what_if: WhatIf | NoWhatIf | None = None) -> str:
    """The page of one run or of several side by side. Its size does not grow with the number of steps.

    Raises ValueError for no run at all.
    """
    if not runs:
        raise ValueError("a report needs a run")
    pairs = [(run, find_steps(run.ledger)) for run in runs]
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side")
    parts: list[str] = []
    sections: list[Section] = []
    links: list[tuple[str, str]] = []
    if len(pairs) == 1:
        run, steps = pairs[0]
        parts.append(tiles(run, steps))
        sections = [*run_sections(run, steps, ""), *([what_if_section(what_if)] if what_if else [])]
        links = [(section.anchor, section.title) for section in sections]
        parts += [_section(section, 2) for section in sections]
    else:
        above = [*comparison_sections(pairs), *([what_if_section(what_if)] if what_if else [])]
        parts += [_section(section, 2) for section in above]
        links = [(section.anchor, section.title) for section in above]
        sections += above
        for index, (run, steps) in enumerate(pairs, 1):
            own = list(run_sections(run, steps, f"run{index}-"))
            parts.append(_run(run, steps, own, index))
            links.append((f"run{index}", f"{index}  {run.name}"))
            sections += own
    charts = [section.chart for section in sections if section.chart]
    data = "".join(f'<script type="application/json" id="{chart.key}-data">{chart.json()}</script>' for chart in charts)
    page = _document(title, _about(runs), links, "\n".join(parts), data)
    # A log may hold half of a character (a lone surrogate), which no file can.
    return page.encode("utf-8", "replace").decode()


def write_page(path: Path, page: str, key: str = "--output") -> None:
    """Write a page, whole or not at all. Raises ConfigError that names the option `key` if that is not possible."""
    target = path.resolve()
    why = "it is a folder" if path.is_dir() else "" if path.parent.is_dir() else "its folder does not exist"
    try:
        if path.exists() and not path.is_file():
            path.write_text(page, encoding="utf-8")  # a pipe or a device: a rename would put a file in its place
        elif not why:
            write_atomically(target, page)
    except OSError as error:
        why = why or (error.strerror or str(error)).lower()
    if why:
        fix = "name a file in an existing folder that you may write to"
        raise ConfigError([Problem(key, str(path), why, fix)], "no page")


def _document(title: str, about: str, links: Sequence[tuple[str, str]], main: str, data: str) -> str:
    resources = files("holdfast.report")
    style = (resources / "page.css").read_text(encoding="utf-8")
    plotly, own = get_plotlyjs(), (resources / "page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_digest(plotly)} {_digest(own)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    navigation = "".join(f'<li><a href="#{anchor}">{text(name)}</a></li>' for anchor, name in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)} - Holdfast report</title><style>{style}</style></head>\n"
        '<body><a class="skip" href="#main">Skip to the report</a>\n'
        f'<header><div><p class="brand">Holdfast report</p><h1>{text(title)}</h1>'
        f'<p class="about">{text(about)}</p></div>'
        '<button id="theme" type="button" hidden>Dark</button></header>\n'
        f'<nav aria-label="Sections"><ul>{navigation}</ul></nav>\n'
        f'<main id="main" tabindex="-1"><noscript><p>Without JavaScript there are no charts; '
        f"every number is in the tables.</p></noscript>\n{main}\n</main>\n"
        "<footer><p>Seconds come from the event logs; each second of wall time is in exactly one bucket. "
        "This file loads nothing from anywhere.</p></footer>\n"
        f'{data}\n<script type="application/json" id="roles">{json.dumps(dict(ROLES))}</script>\n'
        f"<script>{plotly}</script>\n<script>{own}</script>\n</body></html>\n"
    )


def _section(section: Section, level: int) -> Html:
    return Html(
        f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">'
        f'<h{level} id="{section.anchor}-title">{text(section.title)}</h{level}>\n{section.body}</section>'
    )


def _run(run: ReportedRun, steps: Steps, sections: Sequence[Section], index: int) -> Html:
    inside = "\n".join(_section(section, 3) for section in sections)
    return Html(
        f'<section class="run" id="run{index}" aria-labelledby="run{index}-title">'
        f'<h2 id="run{index}-title">{index}  {text(run.name)}</h2><p class="about">{text(_started(run))}</p>'
        f"{tiles(run, steps)}\n{inside}</section>"
    )


def _about(runs: Sequence[ReportedRun]) -> str:
    return _started(runs[0]) if len(runs) == 1 else ", ".join(run.name for run in runs)


def _started(run: ReportedRun) -> str:
    ledger = run.ledger
    try:
        at = datetime.fromtimestamp(ledger.origin + ledger.start, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        at = "at a time that no calendar has"  # a damaged anchor
    ranks = f"{ledger.ranks:,} rank{'' if ledger.ranks == 1 else 's'}"
    return f"Started {at}, {ranks}, {spoken(ledger.wall_s)}."


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
