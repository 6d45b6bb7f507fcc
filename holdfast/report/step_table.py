"""The attempts of a run as a table: what each executed, what of it counts, and how fast and how well it trained."""

from __future__ import annotations

import numpy as np

from holdfast.goodput.ledger import Ledger
from holdfast.goodput.report import seconds
from holdfast.report.series import Steps
from holdfast.report.tables import Html, table

MOST_ROWS = 100

COLUMNS = (
    "attempt",
    "<begins (s)",
    "<first step",
    "<last step",
    "<steps that count",
    "<rolled back",
    "<last loss",
    "<s per step (median)",
)


def attempts_table(ledger: Ledger, steps: Steps) -> Html:
    """One row per attempt, oldest first; of very many the first ones, and a line that says how many are left out."""
    rows = []
    for attempt in ledger.attempts[:MOST_ROWS]:
        name = str(attempt)
        begin = seconds(max(0.0, attempt.begin - ledger.start))
        if name not in steps.attempts:
            rows.append([name, begin, *["-"] * 2, "0", "0", "-", "-"])
            continue
        mine = steps.attempt == steps.attempts.index(name)
        loss = steps.loss[mine]
        rows.append(
            [
                name,
                begin,
                f"{int(steps.step[mine][0]):,}",
                f"{int(steps.step[mine][-1]):,}",
                f"{int((mine & steps.kept).sum()):,}",
                f"{int((mine & ~steps.kept).sum()):,}",
                f"{loss[-1]:.4g}" if np.isfinite(loss[-1]) else "-",
                f"{float(np.median(steps.seconds[mine])):.3f}",
            ]
        )
    left_out = len(ledger.attempts) - len(rows)
    more = Html(f"<p>... and {left_out} more.</p>" if left_out else "")
    return table("Attempts", COLUMNS, rows) + more
