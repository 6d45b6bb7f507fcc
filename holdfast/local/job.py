"""The Job controller, for Jobs of one pod: makes the pod, makes it again, or gives up, as the Job's policies say."""

from __future__ import annotations

from typing import Literal

from holdfast.local.objects import JobSet, PodFailureRule, ReplicatedJob
from holdfast.local.pod import Pod, pod_name

DISRUPTION = "DisruptionTarget"
_PREFIX = "jobset.sigs.k8s.io"


class Job:
    """One Job of one attempt of the JobSet. podReplacementPolicy Failed: never two of its pods at once."""

    def __init__(self, jobset: JobSet, replicated_job: ReplicatedJob, index: int, attempt: int) -> None:
        self.replicated_job = replicated_job.name
        self.name = f"{jobset.name}-{replicated_job.name}-{index}"
        self.index = index
        self.attempt = attempt
        self.template = replicated_job.job
        self.status: Literal["active", "complete", "failed"] = "active"
        self.reason = ""
        self.failed_code: int | None = None
        self.deleted = False
        self.pod: Pod | None = None
        self.failures = 0
        self._next_pod_at = 0.0
        self._host = jobset.host(replicated_job.name, index)
        before = jobset.replicated_jobs[: jobset.replicated_jobs.index(replicated_job)]
        self._labels = {
            f"{_PREFIX}/jobset-name": jobset.name,
            f"{_PREFIX}/replicatedjob-name": replicated_job.name,
            f"{_PREFIX}/job-index": str(index),
            f"{_PREFIX}/job-global-index": str(sum(job.replicas for job in before) + index),
            f"{_PREFIX}/restart-attempt": str(attempt),
            "batch.kubernetes.io/job-name": self.name,
            "batch.kubernetes.io/job-completion-index": "0",
        }

    @property
    def is_ready(self) -> bool:
        """Whether its pod is ready, or has done its work."""
        return self.status == "complete" or (self.pod is not None and self.pod.ready)

    def wants_pod(self, now: float) -> bool:
        """Whether a pod must be made now."""
        return self.status == "active" and not self.deleted and self.pod is None and now >= self._next_pod_at

    def make_pod(self) -> Pod:
        """A new pod, not started yet."""
        self.pod = Pod(
            name=pod_name(self._host),
            host=self._host,
            job=self.name,
            replicated_job=self.replicated_job,
            index=self.index,
            attempt=self.attempt,
            template=self.template.pod,
            labels={**self.template.pod.labels, **self._labels},
        )
        return self.pod

    def delete(self, reason: str) -> None:
        """Make no more pods and end the one there is, with its grace period."""
        self.deleted = True
        if self.pod is not None:
            self.pod.stop(reason)

    def pod_ended(self, pod: Pod, now: float, back_off_s: float, back_off_limit_s: float) -> None:
        """Decide what follows from the end of the pod.

        The n-th counted failure delays the next pod by back_off_s * 2^(n-1), at most back_off_limit_s.
        """
        self.pod = None
        if self.deleted or self.status != "active":
            return
        if pod.exit_code == 0 and not pod.lost:
            self.status = "complete"
            return
        action = self._action(pod)
        if action == "FailJob":
            self.failed_code = pod.exit_code
            self._fail("PodFailurePolicy")
        elif action == "Count":
            self.failures += 1
            if self.failures > self.template.backoff_limit:
                self._fail("BackoffLimitExceeded")
            elif not pod.disrupted:
                self._next_pod_at = now + min(back_off_s * 2 ** min(self.failures - 1, 30), back_off_limit_s)

    def _fail(self, reason: str) -> None:
        self.status, self.reason = "failed", reason

    def _action(self, pod: Pod) -> str:
        for rule in self.template.rules:
            if _matches(rule, pod):
                return rule.action
        return "Count"


def _matches(rule: PodFailureRule, pod: Pod) -> bool:
    if rule.condition is not None:
        return rule.condition == DISRUPTION and pod.disrupted
    if pod.lost or pod.exit_code == 0:
        return False  # a container that nobody can ask has no exit code
    return (pod.exit_code in rule.exit_codes) == (rule.operator == "In")
