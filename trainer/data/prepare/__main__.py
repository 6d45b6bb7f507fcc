"""Tokenize data ahead of training: `python -m trainer.data.prepare SOURCE --to FOLDER`.

With --json it prints JSON lines ({total, done} bytes, {advance} bytes, {result}), as `holdfast data prepare` reads
them; without, lines for a log. Exit code 0: the folder is ready. 1: a disk, the network or a process failed, there is
no room, or another preparation has the folder; the same command goes on. 2: bad input. 130: interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.config import EXIT_BAD_CONFIG, ConfigError, Problem
from trainer.data.hub import without_token
from trainer.data.prepare.conduct import TOKENIZER, prepare
from trainer.data.prepare.failures import WorkFailed
from trainer.data.prepare.plan import Request

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
LOG_EVERY_S = 30.0
_OPTIONS = {"data.tokenizer": TOKENIZER}
"""Keys of the config -> how this command calls them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit code. Complaints go to stderr."""
    args = _parser().parse_args(argv)
    request = Request(
        args.source,
        args.storage / args.to,
        args.tokenizer,
        args.storage,
        args.files,
        args.revision,
        args.text_key,
        args.workers,
    )
    teller = _Json() if args.json else _Log()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # PID 1 of a pod would not even notice it
    try:
        result = prepare(request, teller.tell)
        teller.finish(result, request.out)
    except ConfigError as error:
        print(without_token(str(_in_options(error))), file=sys.stderr)
        return EXIT_BAD_CONFIG
    except WorkFailed as error:
        text = str(error).rstrip(".")
        print(without_token(f"data prepare: {text}. Run it again: pieces that are done are kept."), file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.data.prepare")
    parser.add_argument("source")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--storage", type=Path, default=Path(), help="where relative paths start")
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--files")
    parser.add_argument("--revision")
    parser.add_argument("--text-key", default="text")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


def _in_options(error: ConfigError) -> ConfigError:
    problems = [Problem(_OPTIONS.get(one.key, one.key), one.got, one.why, one.fix) for one in error.problems]
    return ConfigError(problems, "data prepare")


class _Json:
    def tell(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    def finish(self, result: dict[str, Any], out: Path) -> None:
        self.tell({"result": result})


class _Log:
    """A line now and then, with the share that is done and the speed since the start."""

    def __init__(self) -> None:
        self._total = self._done = self._before = 0
        self._start = self._last = time.monotonic()

    def tell(self, record: dict[str, Any]) -> None:
        if "total" in record:
            self._total, self._done, self._before = record["total"], record["done"], record["done"]
        self._done += record.get("advance", 0)
        now = time.monotonic()
        if now - self._last >= LOG_EVERY_S or "total" in record:
            self._last = now
            speed = (self._done - self._before) / max(now - self._start, 1e-9) / 2**20
            share = 100 * self._done / max(1, self._total)
            print(f"{share:.1f} % of {self._total / 2**20:.1f} MiB read, {speed:.1f} MiB/s", flush=True)

    def finish(self, result: dict[str, Any], out: Path) -> None:
        print(f"{out}: {result['tokens']} tokens of {result['documents']} documents", flush=True)


if __name__ == "__main__":
    sys.exit(main())
