"""Looks at a checkpoint folder all the time, as somebody would who resumes from it at that moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint_folder import damage, look, read_marker
from holdfast.config import names

PAUSE_S = 0.01


class Watch:
    """Every look verifies the newest committed step in full. `complaints` is empty if the promise was kept.

    The look of a test calls `look_now`; the thread of `looking` calls it again and again.
    """

    def __init__(self, folder: Path, *, pause_s: float = PAUSE_S, damaged: bool = False) -> None:
        """pause_s: between two looks. damaged: something damages what is committed, on purpose: the newest commit need
        not be whole, and it is set aside by the attempt that finds out."""
        self._folder = folder
        self._pause_s = pause_s
        self._damaged = damaged
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.looks = 0
        self.seen: set[int] = set()
        """Steps that were committed at some look."""
        self.complaints: list[str] = []
        self.commits: list[tuple[float, int]] = []
        """Monotonic time and step of each new newest step, as seen."""

    @property
    def highest(self) -> int:
        """The newest step that was ever seen; 0 if none."""
        return max(self.seen, default=0)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look all the time for the length of the body."""
        thread = threading.Thread(target=self._look_on, name="watch")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(30)

    def _look_on(self) -> None:
        while not self._over.wait(self._pause_s):
            try:
                self.look_now()
            except Exception as error:  # noqa: BLE001  a watch that died would see no evil
                self._complain(f"the watch could not look: {error!r}")

    def look_now(self) -> int:
        """One look; the newest committed step, 0 if there is none."""
        with self._lock:
            before = self.highest
            newest = self.newest()
            self.looks += 1
            if newest < before:
                # Two commits during one slow look let prune delete what it had listed. Only something newer excuses it.
                again = self.newest()
                if again <= before and not self._damaged:
                    self._complain(f"the newest committed step went back from {before} to {newest}")
                newest = again
            if newest > before:
                self.commits.append((time.monotonic(), newest))
            if newest:
                self.seen.add(newest)
            if newest and not self._damaged:
                self._require_whole(newest)
            self._require_pointer()
            return newest

    def newest(self) -> int:
        """The newest committed step by its marker, as a resumer would read it; 0 if there is none."""
        return max(look(self._folder).committed, default=0)

    def _require_whole(self, step: int) -> None:
        folder = self._folder / names.step_folder(step)
        marker = read_marker(folder)
        found = list(damage(folder, marker.files, marker.block_bytes)) if marker else ["its marker is gone"]
        if found and self.newest() <= step:  # a newer one may have let prune delete it under our eyes
            self._complain(f"step {step}, the newest committed one, is not whole: {'; '.join(found)}")

    def _require_pointer(self) -> None:
        """LATEST names a committed step. Folders change between two reads, so it must be wrong twice."""
        named = self._pointer()
        if named and not self._is_committed(named) and self._pointer() == named and not self._is_committed(named):
            self._complain(f"LATEST names {named}, which is not committed")

    def _pointer(self) -> str:
        try:
            return (self._folder / names.LATEST).read_text()
        except FileNotFoundError:
            return ""

    def _is_committed(self, name: str) -> bool:
        return read_marker(self._folder / name) is not None

    def note(self, what: list[str]) -> None:
        """Complaints of others, about what happened between two verdicts."""
        self.complaints += what

    def _complain(self, what: str) -> None:
        if what not in self.complaints:
            self.complaints.append(what)
