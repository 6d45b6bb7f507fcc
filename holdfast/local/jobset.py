"""The JobSet controller: which Jobs there should be, and what their ends mean for the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from holdfast.local.job import Job
from holdfast.local.objects import JobFailureRule, JobSet, ReplicatedJob


@dataclass
class _Slot:
    """The place of one Job: its present one, and former ones whose pods are still ending."""

    replicated_job: ReplicatedJob
    index: int
    job: Job | None = None
    leaving: list[Job] = field(default_factory=list)


class JobSetController:
    """Strategy Recreate: after a restart each Job comes back as soon as its own old pod has gone."""

    def __init__(self, jobset: JobSet) -> None:
        self.jobset = jobset
        self.attempt = 0
        self.status: Literal["active", "complete", "failed"] = "active"
        self.reason = ""
        self.failed_code: int | None = None
        self._restarts_counted = 0
        self._slots = [_Slot(job, index) for job in jobset.replicated_jobs for index in range(job.replicas)]

    @property
    def jobs(self) -> list[Job]:
        """The Jobs of the present attempt."""
        return [slot.job for slot in self._slots if slot.job is not None]

    def owner(self, pod_job: str, attempt: int) -> Job | None:
        """The Job, present or leaving, that made a pod."""
        for slot in self._slots:
            for job in [slot.job, *slot.leaving]:
                if job is not None and job.name == pod_job and job.attempt == attempt:
                    return job
        return None

    def reconcile(self) -> None:
        """Bring the Jobs into line with what has happened. Failures are judged before successes, as JobSet does."""
        if self.status != "active":
            return
        failed = [job for job in self.jobs if job.status == "failed"]
        if failed:
            self._answer(failed)
        elif self._has_succeeded():
            self._finish("complete", "the JobSet's success policy is met")
        if self.status == "active":
            self._create_jobs()

    def abandon(self, reason: str) -> None:
        """End it from outside."""
        self.status, self.reason = "failed", reason
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Delete every Job."""
        for slot in self._slots:
            if slot.job is not None:
                slot.job.delete(reason)
                slot.leaving.append(slot.job)
                slot.job = None

    def _finish(self, status: Literal["complete", "failed"], reason: str) -> None:
        self.status, self.reason = status, reason
        self._stop(f"the JobSet is {status}")

    def _answer(self, failed: list[Job]) -> None:
        rule, job = self._rule_for(failed)
        why = f"job {job.name}: {job.reason}" + (
            f", exit code {job.failed_code}" if job.failed_code is not None else ""
        )
        action = "RestartJobSet" if rule is None else rule.action
        if action == "FailJobSet":
            self.failed_code = job.failed_code
            self._finish("failed", why)
        elif action == "RestartJobSet" and self._restarts_counted >= self.jobset.max_restarts:
            self._finish("failed", f"maxRestarts = {self.jobset.max_restarts} reached; {why}")
        else:
            self._restarts_counted += action == "RestartJobSet"
            self.attempt += 1
            self.reason = why
            self._stop("the JobSet restarts")

    def _rule_for(self, failed: list[Job]) -> tuple[JobFailureRule | None, Job]:
        for rule in self.jobset.rules:
            for job in failed:
                if (not rule.reasons or job.reason in rule.reasons) and (
                    not rule.targets or job.replicated_job in rule.targets
                ):
                    return rule, job
        return None, failed[0]

    def _has_succeeded(self) -> bool:
        done = [
            slot.job is not None and slot.job.status == "complete"
            for slot in self._slots
            if not self.jobset.success_targets or slot.replicated_job.name in self.jobset.success_targets
        ]
        return any(done) if self.jobset.success_any else all(done)

    def _create_jobs(self) -> None:
        for slot in self._slots:
            slot.leaving = [job for job in slot.leaving if job.pod is not None]
            if slot.job is None and not slot.leaving and self._may_start(slot.replicated_job):
                slot.job = Job(self.jobset, slot.replicated_job, slot.index, self.attempt)

    def _may_start(self, replicated_job: ReplicatedJob) -> bool:
        return all(self._reached(name, status) for name, status in replicated_job.depends_on)

    def _reached(self, replicated_job: str, status: str) -> bool:
        return all(
            slot.job is not None and (slot.job.is_ready if status == "Ready" else slot.job.status == "complete")
            for slot in self._of(replicated_job)
        )

    def _of(self, replicated_job: str) -> Iterator[_Slot]:
        return (slot for slot in self._slots if slot.replicated_job.name == replicated_job)
