"""Small inputs for preparations, and the preparation in this process or as one of its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.data.prepare.conduct import prepare
from trainer.data.prepare.plan import Request

ROOT = Path(__file__).parents[2]


def lines(documents: list[str], key: str = "text") -> bytes:
    """JSON lines."""
    return b"".join(json.dumps({key: text, "url": "u"}, ensure_ascii=False).encode() + b"\n" for text in documents)


def documents(count: int, name: str = "d") -> list[str]:
    """Documents that differ in text and length."""
    return [f"{name}{number} " + "ü" * (number % 7) + "word " * (number % 5) for number in range(count)]


def corpus(folder: Path, count: int = 60) -> Path:
    """The same documents three times: as JSON lines, packed, and as parquet in row groups; and a README beside them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_bytes(lines(documents(count, "a")))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(documents(count, "b"))))
    pq.write_table(pa.table({"text": documents(count, "c")}), folder / "c.parquet", row_group_size=16)
    (folder / "README.md").write_text("no data")
    return folder


def made(source: Path | str, out: Path, **more: Any) -> dict[str, Any]:
    """Prepare; the result."""
    told: list[dict[str, Any]] = []
    result = prepare(Request(str(source), out, more.pop("tokenizer", "bytes"), **more), told.append)
    assert told[0]["done"] + sum(record.get("advance", 0) for record in told) == told[0]["total"]
    return result


def run(
    *arguments: Path | str, first: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The preparation as a process, after the Python lines `first`."""
    code = f"{first}\nfrom trainer.data.prepare.__main__ import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    how = ["-c", code] if first else ["-m", "trainer.data.prepare"]
    return subprocess.run(
        [sys.executable, *how, *(str(argument) for argument in arguments)],
        env=os.environ | (environment or {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def content(out: Path) -> dict[str, bytes]:
    """Name -> bytes of all that is visible in a folder."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name[0] != "."}
