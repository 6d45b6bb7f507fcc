"""All seeds that are missing: run after run, each killed again and again, each compared with one in peace."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.chaos.attempt import Place
from bench.chaos.plan import Plan
from bench.chaos.processes import Zygote
from bench.chaos.records import Finished, Kill, WorkFile
from bench.chaos.tormented import GivenUp, Pace, Tormented
from holdfast.config import RunConfig, dump, load_profile

PROFILE = "cpu-test"
STEPS = 40
SETS = (
    "training.min_step_s=0.03",
    "checkpoint.persist_timeout_s=20",
    "checkpoint.max_failed_saves=50",  # the stop rules are right, and tested elsewhere: here they would end the torment
    "recovery.same_step_limit=100",
    "recovery.max_restarts_without_progress=100",
    "recovery.in_process=false",
    "recovery.in_job=false",
    "recovery.process_group_timeout_s=20",
)
COMPARE_LIMIT_S = 60.0
MOST_IN_VAIN = 5
"""Runs in a row that may end before their first kill was due. More, and what should be killed is not recognised."""


class Campaign:
    """Use as a context manager: no process of it lives on."""

    def __init__(self, out: Path, work: WorkFile, show: Callable[[Kill], None], steps: int = STEPS) -> None:
        """out: work folder. show: gets each kill once it is judged. steps: length of the runs."""
        self._out = out
        self._work = work
        self._show = show
        self._steps = steps
        self._pace = Pace()
        self._scratch = Path(tempfile.mkdtemp(prefix="hf-chaos-", dir="/tmp"))  # unix sockets: 107 characters at most
        self._zygote = Zygote(out / "zygote.log")
        self._clean: Path | None = None

    def __enter__(self) -> Campaign:
        self._out.mkdir(parents=True, exist_ok=True)
        self._zygote.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._zygote.__exit__()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def go(self, seeds: Sequence[int], deadline: float = float("inf")) -> None:
        """Carry out the kills of these seeds; begin none after `deadline` (monotonic). Raises GivenUp."""
        left = list(seeds)
        self._clean = self._clean_run()
        number = len(self._work.runs)
        in_vain = 0
        while left and time.monotonic() < deadline:
            number, before = number + 1, len(left)
            self._one_run(number, left, deadline)
            in_vain = 0 if len(left) < before else in_vain + 1
            if in_vain == MOST_IN_VAIN and time.monotonic() < deadline:
                raise GivenUp(f"seed {left[0]} found nothing to kill in {in_vain} whole runs: {Plan.draw(left[0])}")

    def _clean_run(self) -> Path:
        """A run in peace, by the same ways."""
        place, config = self._place("clean", 3)
        run = Tormented(self._zygote, config, place, self._pace, self._add)
        try:
            with run.watch.looking():
                run.finish()
        finally:
            run.stop()
        if run.watch.complaints:
            raise GivenUp(f"the run in peace failed: {'; '.join(run.watch.complaints)}")
        return place.run_dir

    def _one_run(self, number: int, left: list[int], deadline: float) -> None:
        """Take seeds from `left` as long as the run lasts; compare its weights."""
        since = time.monotonic()
        place, config = self._place(f"run-{number:04d}", 2 + number % 2)
        run = Tormented(self._zygote, config, place, self._pace, self._add)
        identical, why = None, []
        try:
            with run.watch.looking():
                while left and time.monotonic() < deadline and run.strike(Plan.draw(left[0])):
                    left.pop(0)
                run.finish()
            different = self._differences(place)
            identical, why = not different, run.verdicts.unsaid() + different
        except GivenUp as error:
            run.verdicts.abandon(f"run {number}, kept in {place.run_dir}, was given up: {error}")
            why = [*run.verdicts.unsaid(), f"given up: {error}"]
            raise
        finally:
            run.stop()
            seconds = round(time.monotonic() - since, 1)
            self._work.add(Finished(number, run.seeds, identical, run.watch.looks, seconds, why))
        if not why and all(kill.ok for kill in self._work.kills if kill.seed in run.seeds):
            shutil.rmtree(place.run_dir)
            shutil.rmtree(place.logs)

    def _add(self, kill: Kill) -> None:
        self._work.add(kill)
        self._show(kill)

    def _place(self, name: str, interval: int) -> tuple[Place, RunConfig]:
        """An empty place for a run that saves every `interval` steps."""
        config = load_profile(
            PROFILE, [*SETS, f"training.steps={self._steps}", f"checkpoint.interval_steps={interval}"]
        )
        storage = self._out / "fsx"
        place = Place(storage, storage / name, self._out / f"{name}.yaml", self._out / "logs" / name, self._scratch)
        for folder in (place.run_dir, place.logs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        place.config_file.write_text(dump(config))
        return place, config

    def _differences(self, place: Place) -> list[str]:
        """Compare the final checkpoint with the clean run's, in a process that has torch. Empty: bit for bit alike."""
        assert self._clean is not None
        log = place.logs / "compare.log"
        environment = {"OMP_NUM_THREADS": "1", "PATH": os.environ.get("PATH", ""), "PYTHONWARNINGS": "ignore"}
        arguments = [str(self._clean), str(place.run_dir)]
        process = self._zygote.start("trainer.checkpoint.compare", arguments, environment, self._out, log)
        code = process.wait(COMPARE_LIMIT_S)
        if code is None:
            process.kill()
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        answer: dict[str, Any] = json.loads(lines[-1]) if lines else {"different": [log.read_text()[-500:]]}
        if code == 0 and answer["step"] == self._steps:
            return []
        return [f"final weights differ from the clean run's (exit code {code}): {answer['different'][:3]}"]
