"""What both campaigns keep alike: a hash of the code that was put to the test, a file of lines that goes on where it
was cut short, and the rule by which a sum replaces the one that is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import json_lines

SCHEMA = 1


def sha256_of(files: Iterable[Path], root: Path) -> str:
    """Hash of the names, below root, and contents of files, in the order given."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def begun(path: Path, code: str) -> list[dict[str, Any]]:
    """The lines of a file whose first one is {code_sha256}, without that one; the file is there afterwards.

    Lines of other code are set aside: the file gets another name, and counting begins anew.
    """
    records = json_lines.read([path])
    if records and records[0].get("code_sha256") != code:
        path.rename(path.with_name(f"{path.stem}.{str(records[0].get('code_sha256'))[:12]}{path.suffix}"))
        records = []
    if not records:
        json_lines.append(path, {"code_sha256": code})
    return records[1:]


def missing(seeds: Iterable[int], done: Iterable[int]) -> list[int]:
    """Seeds that have no line yet."""
    there = set(done)
    return [seed for seed in seeds if seed not in there]


def keep(counted: str, total: dict[str, Any], about: dict[str, Any], path: Path) -> bool:
    """Write the result, unless it counts nothing, or the one that is there counts more of the same code.

    counted: the key of `total` that says how many. True if written.
    """
    there = _there(path)
    same = there.get("code_sha256") == total["code_sha256"]
    if not total[counted] or (same and there[counted] > total[counted]):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": SCHEMA, **about, **total}, indent=1) + "\n", encoding="utf-8")
    return True


def _there(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
