"""What is done about a step whose loss or gradient cannot be right: not finite, or far above the running median.

All ranks decide alike and without a collective of their own: norm and mean loss come out of the one that clipping makes
anyway. A bad update is never applied: the device leaves it out by `ceiling`, and `accepts` says afterwards what
happened. What was decided is in skipped_batches.json, so that a replay after a restart decides the same, and the run
stays the same bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from holdfast.config import names
from holdfast.config.recovery import Recovery
from holdfast.run_directory import RunDirectory, Terminal, read_json, write_atomically
from trainer.runtime import Attempt

if TYPE_CHECKING:
    from trainer.train import Survivors

logger = logging.getLogger(__name__)
TAIL_BYTES = 1 << 22
"""Of losses.jsonl, read at the start of an attempt: more than 100,000 steps, of which the last window is needed."""


class BadLoss(Exception):
    """This attempt ends because of a loss: for good if TERMINAL says so, otherwise to go back to the last commit."""


@dataclass
class Skipped:
    """Content of skipped_batches.json. why: step -> reason; the update of these steps is not made. bad: how often
    something was skipped or rolled back. rolled_back: bad steps before which steps are still to be left out: from the
    step on to which the next attempt restores, which nobody knows before. A save under way may be committed yet."""

    why: dict[str, str] = field(default_factory=dict)
    bad: int = 0
    rolled_back: list[int] = field(default_factory=list)

    def settle(self, restored: int) -> bool:
        """Leave out what lies between the restored step and the bad ones. Whether that is news."""
        for bad in self.rolled_back:
            why = self.why[str(bad)]
            self.why.update({str(step): why for step in range(restored + 1, bad)})
        was, self.rolled_back = bool(self.rolled_back), []
        return was


class Losses:
    """One per attempt, on each rank. `begin` after the restore, then in every step `ceiling` before the update and
    `accepts` after it."""

    def __init__(self, survivors: Survivors, attempt: Attempt) -> None:
        self._limits: Recovery = survivors.config.recovery
        self._run = survivors.run
        self._rank = survivors.identity.rank
        self._attempt = attempt
        self._log = survivors.log
        self._skipped = Skipped()
        self.window: deque[float] = deque(maxlen=self._limits.loss_spike_window_steps)
        """Losses of the last updates that were made."""

    def begin(self, restored: int) -> None:
        """Learn what earlier attempts decided, and the losses before the restored step. Collective; raises OSError."""
        import torch.distributed as dist

        known: list[Any] = [None, None, ""]
        if self._rank == 0:
            try:
                skipped = self.settled(restored)
                known = [skipped, read_window(self._run, restored, self._limits, skipped), ""]
            except OSError as error:
                known[2] = str(error)
        dist.broadcast_object_list(known, src=0)
        if known[2]:
            raise OSError(known[2])  # on all ranks: they would wait for rank 0 until the process group's timeout
        self.know(known[0], known[1])

    def settled(self, restored: int) -> Skipped:
        """What earlier attempts decided, now that it is known where this one goes on. Rank 0 only; raises OSError."""
        skipped = read_skipped(self._run)
        if skipped.settle(restored):
            self._keep(skipped)
        return skipped

    def _keep(self, skipped: Skipped) -> None:
        self._run.require_generation(self._attempt.generation)
        write_atomically(self._run.path / names.SKIPPED_BATCHES, json.dumps(asdict(skipped), indent=1))

    def know(self, skipped: Skipped, window: list[float]) -> None:
        """What `begin` has learned."""
        self._skipped = skipped
        self.window.extend(window)

    def ceiling(self, step: int) -> float:
        """Largest mean loss with which the update of this step is made, if loss and norm are finite."""
        if str(step) in self._skipped.why:
            return -math.inf
        factor, window = self._limits.loss_spike_factor, self.window
        if factor is None or len(window) < self._limits.loss_spike_window_steps:
            return math.inf
        return factor * median(window)

    def accepts(self, step: int, norm: float, loss: float, own_loss: float = math.nan) -> bool:
        """Whether the update of this step was made. norm, loss: the same on all ranks; own_loss: of this rank's part of
        the batch, for the record. Raises BadLoss, on all ranks alike, where the policy ends the attempt or the run."""
        if str(step) in self._skipped.why:
            self._log.point("batch_skipped", step=step, why=self._skipped.why[str(step)], again=True)
            return False
        why = self._wrong(step, norm, loss)
        if why is None:
            self._remember(step, loss)
            return True
        self._log.point("bad_loss", step=step, why=why, loss=repr(loss), norm=repr(norm), own_loss=repr(own_loss))
        return self._answer(step, why)

    def _wrong(self, step: int, norm: float, loss: float) -> str | None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            return f"mean loss {loss:g}, gradient norm {norm:g}"
        if loss <= self.ceiling(step):
            return None
        factor, window = self._limits.loss_spike_factor, self.window
        return f"mean loss {loss:g}, above {factor:g} x the median {median(window):g} of the last {len(window)} steps"

    def _answer(self, step: int, why: str) -> bool:
        policy = self._limits.on_bad_loss
        if policy == "stop" or self._skipped.bad >= self._limits.max_bad_losses:
            self._stop(step, why)
        self._skipped.bad += 1
        self._skipped.why[str(step)] = why
        if policy == "roll_back":
            self._skipped.rolled_back.append(step)
        if self._rank == 0:
            self._keep(self._skipped)
        if policy == "roll_back":
            raise BadLoss(f"step {step}: {why}; back to the commit before, without the batches up to this one")
        logger.warning("step %d makes no update: %s", step, why)
        self._log.point("batch_skipped", step=step, why=why, again=False)
        return False

    def _stop(self, step: int, why: str) -> None:
        limits = self._limits
        rule = f"recovery.on_bad_loss={limits.on_bad_loss}"
        if limits.on_bad_loss != "stop":
            rule += f", and recovery.max_bad_losses={limits.max_bad_losses} are used up"
        reason = f"bad loss at step {step}: {why} ({rule}). No update was made of it."
        if self._rank == 0:
            terminal = Terminal(names.EXIT_GIVE_UP, reason, step=step, attempt=str(self._attempt))
            self._run.write_terminal(terminal, self._attempt.generation)
        raise BadLoss(reason)

    def _remember(self, step: int, loss: float) -> None:
        if self._limits.loss_spike_factor is None:
            return
        self.window.append(loss)
        if self._rank == 0:
            with contextlib.suppress(OSError), open(self._run.path / names.LOSSES, "a") as file:
                file.write(f"[{step}, {loss!r}]\n")  # a full disk costs the median some steps, and no more


def read_skipped(run: RunDirectory) -> Skipped:
    """What was decided so far. Raises OSError if it is there and cannot be read: guessed, the run would not be the
    same."""
    path = run.path / names.SKIPPED_BATCHES
    stored = read_json(path)
    if stored is None and not path.exists():
        return Skipped()
    try:
        assert stored is not None
        why = {str(int(step)): str(why) for step, why in stored["why"].items()}
        rolled_back = [int(step) for step in stored.get("rolled_back", ())]
        assert all(str(step) in why for step in rolled_back)
        return Skipped(why, int(stored["bad"]), rolled_back)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        raise OSError(f"{path} cannot be read: without it nobody knows which batches are left out") from None


def read_window(run: RunDirectory, restored: int, limits: Recovery, skipped: Skipped) -> list[float]:
    """Losses of the last updates up to the restored step, as many as the running median wants. A step that is left out
    may have had one before it was rolled back."""
    if limits.loss_spike_factor is None:
        return []
    by_step: dict[int, float] = {}
    for line in _tail(run.path / names.LOSSES):
        with contextlib.suppress(ValueError, TypeError):  # a full disk can tear a line
            step, loss = json.loads(line)
            if isinstance(step, int) and isinstance(loss, float):
                by_step[step] = loss
    made = [step for step in sorted(by_step) if step <= restored and str(step) not in skipped.why]
    return [by_step[step] for step in made][-limits.loss_spike_window_steps :]


def _tail(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return file.read().splitlines()
    except FileNotFoundError:
        return []
