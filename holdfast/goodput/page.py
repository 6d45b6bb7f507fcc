"""A ledger as one self-contained HTML page: no scripts, nothing from the network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from holdfast.goodput.drawing import COLOURS, bucket_bar, timeline_svg
from holdfast.goodput.failures import PARTS
from holdfast.goodput.ledger import BUCKETS, Ledger
from holdfast.goodput.report import MOST_LINES, heading, seconds, title
from holdfast.goodput.saves import STAGES

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1e22;--soft:#5c636c;--line:#d9dde2;--paper:#fff;--card:#f5f6f8;--alarm:#c0182b}
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ec;--soft:#9aa2ac;--line:#353a41;--paper:#14161a;--card:#1e2126;--alarm:#ff6b7a}}
body{margin:0 auto;max-width:1120px;padding:28px 20px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 2px}h2{font-size:17px;margin:34px 0 8px}p{margin:4px 0;color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 18px}.tile b{display:block;font-size:22px}
.tile span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}svg{display:block;width:100%;min-width:640px;height:auto}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.mark{stroke:var(--line)}.fault path{stroke:var(--alarm);fill:var(--alarm)}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:500}th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line)}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}
li{color:var(--soft);overflow-wrap:anywhere}
"""


def html_page(ledger: Ledger, name: str) -> str:
    """The page. Its size does not depend on the number of steps."""
    started = datetime.fromtimestamp(ledger.origin + ledger.start, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    body = [
        f"<h1>{escape(name)}</h1>",
        f"<p>Started {started}, {ledger.ranks} ranks. Every second of wall time is in exactly one bucket.</p>",
        _tiles(ledger),
        "<h2>What the job did</h2><div class=wide>" + timeline_svg(ledger) + "</div>",
        "<p>A red mark is a fault; a thin line is the start of an attempt (generation, cycle, restart).</p>",
        "<h2>Where the time went</h2><div class=wide>" + bucket_bar(ledger) + "</div>",
        _buckets(ledger),
        "<h2>Failures</h2>",
        _recoveries(ledger),
        "<h2>Checkpoints</h2>",
        _saves(ledger),
    ]
    if ledger.anomalies:
        body += ["<h2>Doubts about the logs</h2>", _list(map(str, ledger.anomalies))]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(name)}: goodput {ledger.goodput:.1%}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _tiles(ledger: Ledger) -> str:
    recovered = [r.recovered_s for r in ledger.recoveries if r.recovered_s is not None]
    tiles = [
        (f"{ledger.goodput:.1%}", "goodput (productive / wall)"),
        (f"{seconds(ledger.wall_s)} s", "wall time"),
        (f"{ledger.steps:,}", "steps"),
        (f"{len(recovered)} of {len(ledger.recoveries)}", "failures overcome"),
        (f"{seconds(max(recovered, default=None))} s", "longest recovery"),
        (f"{len(ledger.saves.committed)}", "checkpoints committed"),
    ]
    return (
        "<div class=tiles>" + "".join(f"<div class=tile><b>{b}</b><span>{s}</span></div>" for b, s in tiles) + "</div>"
    )


def _buckets(ledger: Ledger) -> str:
    rows = []
    for bucket, meaning in BUCKETS.items():
        value = ledger.buckets[bucket]
        share = value / ledger.wall_s if ledger.wall_s else 0.0
        swatch = f'<i style="background:{COLOURS[bucket]}"></i>{bucket}'
        rows.append([swatch, seconds(value), f"{share:.1%}", escape(meaning)])
    return _table(["bucket", "<seconds", "<share", "meaning"], rows)


def _recoveries(ledger: Ledger) -> str:
    if not ledger.recoveries:
        return "<p>None.</p>"
    columns = ["failure", "layer", "<detected", "<training again", "<steps lost", *(f"<{heading(p)}" for p in PARTS)]
    rows = [
        [
            escape(title(recovery)),
            recovery.layer or "not recovered",
            seconds(recovery.detected_s),
            seconds(recovery.recovered_s),
            str(recovery.lost_steps),
            *(seconds(recovery.breakdown[part]) for part in PARTS),
        ]
        for recovery in ledger.recoveries[:MOST_LINES]
    ]
    left_out = len(ledger.recoveries) - len(rows)
    more = f"<p>... and {left_out} more.</p>" if left_out else ""
    note = "<p>Seconds from the fault; the columns on the right are the parts of the recovery.</p>"
    return f"<div class=wide>{_table(columns, rows)}</div>{more}{note}"


def _saves(ledger: Ledger) -> str:
    saves = ledger.saves
    lines = [
        f"{len(saves.committed)} committed" + (f", the last at step {saves.committed[-1]}" if saves.committed else "")
    ]
    for what, spread in ((what, getattr(saves, name)) for what, name in STAGES):
        if spread:
            lines.append(
                f"{what}: {seconds(sorted(spread)[len(spread) // 2])} s (median), {seconds(max(spread))} s at most"
            )
    lines += [f"failed at step {step}: {error}" for step, error in saves.failed]
    lines += [f"skipped {folder}: {why}" for folder, why in saves.skipped]
    return _list(lines)


def _list(lines: Iterable[str]) -> str:
    every = list(lines)
    more = [f"... and {len(every) - MOST_LINES} more"] if len(every) > MOST_LINES else []
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in every[:MOST_LINES] + more) + "</ul>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML. Columns that start with `<` hold numbers."""
    classes = [' class="n"' if column.startswith("<") else "" for column in columns]
    head = "".join(f"<th{c}>{escape(t.removeprefix('<'))}</th>" for c, t in zip(classes, columns, strict=True))
    lines = ["".join(f"<td{c}>{cell}</td>" for c, cell in zip(classes, row, strict=True)) for row in rows]
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
