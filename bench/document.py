"""`python -m bench.document`: writes the generated parts of README.md and docs/, so that no number in them is typed.

A part lies between `<!-- generated: NAME -->` and `<!-- end -->`. Measured ones come from bench/results/cpu/demo.json,
which `--record` makes from a finished `make demo`; the others from profiles and tables in the code.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench import (
    article_page,
    checkpoint_page,
    demo_page,
    faults_page,
    kills_page,
    ledger_page,
    memory_page,
    node_recovery_page,
    prediction_page,
    record,
    recovery_page,
    save_efficiency_page,
    scale_page,
    throughput_page,
    timeouts_page,
)
from bench.demo import ROOT
from bench.record import Measured
from holdfast.commands.check import summary as profile_summary
from holdfast.config import ConfigError, load_profile, profile_names
from holdfast.goodput.taxonomy import BUCKETS, GOOGLE_NAMES

_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Block = Callable[[Measured, Path], str]
"""Text of one part. The path is the folder of the document, for links."""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table. Columns that start with `<` hold numbers."""
    heads = list(columns)
    lines = ["| " + " | ".join(head.removeprefix("<") for head in heads) + " |"]
    lines.append("|" + "|".join("---:" if head.startswith("<") else "---" for head in heads) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def buckets(_: Measured, __: Path) -> str:
    """Every bucket and its meaning."""
    rows = [(bucket, means, GOOGLE_NAMES[bucket] or "-") for bucket, means in BUCKETS.items()]
    return table(("bucket", "seconds of job time in which", "ml-goodput-measurement"), rows)


def profiles(_: Measured, __: Path) -> str:
    """The profiles that come with Holdfast."""
    rows = []
    for name in profile_names():
        facts = dict(profile_summary(load_profile(name)))
        rows.append([f"`{name}`", facts["nodes"], facts["model"], facts["checkpoint"]])
    return table(("profile", "nodes", "model", "checkpoint"), rows)


def save_cost(_: Measured, folder: Path) -> str:
    """What a save costs, ours and others'."""
    result = checkpoint_page.read()
    if result is None:
        return "Not measured yet: `make bench` on a machine with two GPUs makes the numbers for this page."
    parts = [checkpoint_page.source(result, folder), table(checkpoint_page.COLUMNS, checkpoint_page.table_rows(result))]
    return "\n\n".join([*parts, *checkpoint_page.verdicts(result), checkpoint_page.computed(result)])


def save_cost_headline(_: Measured, folder: Path) -> str:
    """What a save costs, in two sentences."""
    result = checkpoint_page.read()
    page = os.path.relpath(ROOT / "docs" / "results.md", folder)
    return "Not measured yet." if result is None else checkpoint_page.headline(result, page)


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences)) or "No GPU has been asked yet."


BLOCKS: Mapping[str, Block] = {
    "demo": lambda measured, folder: demo_page.demo(measured, folder, table),
    "layers": lambda measured, folder: demo_page.layers(measured, folder, table),
    "breakdown": lambda measured, folder: demo_page.breakdown(measured, folder, table),
    "timeouts": lambda *_: timeouts_page.timeouts(table),
    "buckets": buckets,
    "profiles": profiles,
    "save-cost": save_cost,
    "save-cost-headline": save_cost_headline,
    "kills": lambda _, folder: kills_page.headline(folder),
    "schedules": lambda _, folder: kills_page.schedules_headline(folder),
    "article": lambda _, folder: article_page.faults(folder, table),
    "ft-cost": lambda _, folder: article_page.cost(folder),
    "node-recovery": lambda _, folder: node_recovery_page.lost_nodes(folder, table),
    "gpu-headline": lambda _, folder: _joined(recovery_page.headline(folder), throughput_page.headline(folder)),
    "recovery": lambda _, folder: recovery_page.recoveries(folder, table),
    "prediction": lambda _, folder: prediction_page.predicted(folder),
    "fault-phases": lambda *_: faults_page.phases_table(),
    "fault-kinds": lambda *_: faults_page.kinds_table(),
    "fault-detectors": lambda *_: faults_page.detectors_table(),
    "fault-refusals": lambda *_: faults_page.refusals_table(),
    "ledger-scale": lambda _, folder: ledger_page.headline(folder),
    "throughput": lambda _, folder: throughput_page.throughput(folder, table),
    "save-efficiency": lambda _, folder: save_efficiency_page.checkpoints(folder, table),
    "gpu-memory": lambda _, folder: memory_page.memory(folder, table),
}


def documents() -> list[Path]:
    """Every document that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rewritten(path: Path, measured: Measured) -> str:
    """The document with its generated parts made anew. Raises ValueError for a part that nobody makes or ends."""
    text = path.read_text(encoding="utf-8")
    if text.count("<!-- generated: ") != len(_BLOCK.findall(text)):
        raise ValueError(f"{path.name}: a generated part has no end")

    def made(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"{path.name}: there is no part {match[2]}; there are: {', '.join(BLOCKS)}")
        return f"{match[1]}\n{BLOCKS[match[2]](measured, path.parent)}\n\n{match[4]}"

    return _BLOCK.sub(made, text)


def main() -> int:
    """Rewrite the documents. Exit code 0; 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m bench.document", description=__doc__)
    default = ROOT / "dist" / "demo"
    say = "first keep what the demo in DIR has measured (default: dist/demo)"
    parser.add_argument("--record", nargs="?", type=Path, const=default, metavar="DIR", help=say)
    arguments = parser.parse_args()
    try:
        measured = record.record(arguments.record) if arguments.record else record.read()
        for path in documents():
            text = rewritten(path, measured)
            if text != path.read_text(encoding="utf-8"):
                path.write_text(text, encoding="utf-8")
                print(f"{path.relative_to(ROOT)} was rewritten")
        scale_page.PAGE.write_text(scale_page.page(scale_page.read()), encoding="utf-8")
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
