"""The Job and JobSet controllers decide as Kubernetes' own do. No process is started here."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from holdfast.local.job import Job
from holdfast.local.jobset import JobSetController
from holdfast.local.manifest import read_documents
from holdfast.local.pod import Pod
from tests.local.toys import Document, job, jobset

NEVER = 2**31 - 1


def controller(*, max_restarts: int = 2, control: Document | None = None, workers: int = 2) -> JobSetController:
    document = jobset(
        control or job("control", "x"),
        job("workers", "x", replicas=workers, backoff_limit=NEVER, depends_on="control"),
        max_restarts=max_restarts,
    )
    return JobSetController(read_documents([document]).jobset)


def find(made: JobSetController, name: str) -> Job:
    return next(one for one in made.jobs if one.name == f"toy-{name}")


def names(made: JobSetController) -> list[str]:
    return [one.name.removeprefix("toy-") for one in made.jobs]


def start_pods(made: JobSetController, now: float = 0.0) -> None:
    """Make every pod that is wanted, and let it be ready at once."""
    for _ in range(2):
        made.reconcile()
        for one in made.jobs:
            if one.wants_pod(now):
                one.make_pod().ready = True
    made.reconcile()


def end(job: Job, code: int, now: float = 0.0, change: Callable[[Pod], object] = lambda pod: None) -> None:
    pod = cast(Pod, job.pod)
    pod.exit_code = code
    change(pod)
    job.pod_ended(pod, now, 1.0, 30.0)


def lose(pod: Pod) -> None:
    pod.lost = pod.disrupted = True


def evict(pod: Pod) -> None:
    pod.disrupted = True


def test_workers_are_made_when_control_is_ready_and_not_before() -> None:
    made = controller()
    made.reconcile()
    assert names(made) == ["control-0"]
    pod = find(made, "control-0").make_pod()
    made.reconcile()
    assert names(made) == ["control-0"]
    pod.ready = True
    made.reconcile()
    assert names(made) == ["control-0", "workers-0", "workers-1"]


def test_pods_carry_the_names_and_labels_of_jobset() -> None:
    made = controller()
    start_pods(made)
    pod = cast(Pod, find(made, "workers-1").pod)
    stem, _, suffix = pod.name.rpartition("-")
    assert (stem, pod.host, len(suffix)) == ("toy-workers-1-0", "toy-workers-1-0", 5)
    prefix = "jobset.sigs.k8s.io"
    assert {key.removeprefix(f"{prefix}/"): value for key, value in pod.labels.items() if key.startswith(prefix)} == {
        "jobset-name": "toy",
        "replicatedjob-name": "workers",
        "job-index": "1",
        "job-global-index": "2",
        "restart-attempt": "0",
    }
    assert pod.labels["role"] == "workers"


def test_the_jobset_succeeds_with_control_alone() -> None:
    made = controller()
    start_pods(made)
    end(find(made, "control-0"), 0)
    made.reconcile()
    assert made.status == "complete"


def test_a_worker_that_succeeds_does_not_complete_the_jobset_and_gets_no_new_pod() -> None:
    made = controller()
    start_pods(made)
    end(find(made, "workers-0"), 0)
    made.reconcile()
    assert made.status == "active"
    assert not find(made, "workers-0").wants_pod(1000.0)


def test_the_back_off_doubles_up_to_its_limit() -> None:
    made = controller()
    start_pods(made)
    worker = find(made, "workers-0")
    now = 100.0
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        end(worker, 1, now)
        assert not worker.wants_pod(now + delay_s - 0.01)
        now += delay_s
        assert worker.wants_pod(now)
        worker.make_pod()


def test_pods_lost_with_their_node_or_evicted_are_not_counted_and_come_back_at_once() -> None:
    made = controller()
    start_pods(made)
    worker = find(made, "workers-0")
    for code, change in ((137, lose), (75, evict), (1, evict)) * 3:
        end(worker, code, 50.0, change)
        assert worker.wants_pod(50.0) and worker.failures == 0
        worker.make_pod()


def test_a_lost_pod_has_no_exit_code_that_could_match_a_rule() -> None:
    made = controller()
    start_pods(made)
    for code in (78, 0):
        end(find(made, "workers-0"), code, change=lose)
        assert find(made, "workers-0").status == "active"
        find(made, "workers-0").make_pod()


def test_an_evicted_pod_that_exits_0_has_succeeded() -> None:
    """As in Kubernetes; our supervisor therefore exits 75."""
    made = controller()
    start_pods(made)
    end(find(made, "workers-0"), 0, change=evict)
    assert find(made, "workers-0").status == "complete"


def test_exit_codes_78_and_93_of_any_pod_fail_the_jobset_with_that_code() -> None:
    for name, code in (("workers-1", 78), ("control-0", 93)):
        made = controller()
        start_pods(made)
        end(find(made, name), code)
        made.reconcile()
        assert (made.status, made.failed_code, made.attempt) == ("failed", code, 0)
        assert made.reason == f"job toy-{name}: PodFailurePolicy, exit code {code}"


def test_a_terminal_failure_wins_over_success_at_the_same_moment() -> None:
    made = controller()
    start_pods(made)
    end(find(made, "control-0"), 0)
    end(find(made, "workers-0"), 93)
    made.reconcile()
    assert (made.status, made.failed_code) == ("failed", 93)


def test_control_lost_or_evicted_restarts_everything_with_the_next_attempt() -> None:
    for change in (lose, evict):
        made = controller()
        start_pods(made)
        old = find(made, "workers-0")
        end(find(made, "control-0"), 137, change=change)
        made.reconcile()
        assert (made.status, made.attempt, names(made)) == ("active", 1, ["control-0"])
        assert old.deleted and find(made, "control-0").make_pod().labels["jobset.sigs.k8s.io/restart-attempt"] == "1"


def test_after_a_restart_each_job_waits_for_its_own_old_pod_only() -> None:
    made = controller()
    start_pods(made)
    old = [find(made, "workers-0"), find(made, "workers-1")]
    left = cast(Pod, old[1].pod)
    end(find(made, "control-0"), 1)
    made.reconcile()
    assert old[0].pod is not None  # a pod that never started has ended, and its Job is told by the runner
    end(old[0], 137)
    start_pods(made)
    assert names(made) == ["control-0", "workers-0"]
    left.exit_code = 75
    old[1].pod_ended(left, 0.0, 1.0, 30.0)
    made.reconcile()
    assert names(made) == ["control-0", "workers-0", "workers-1"]


def test_max_restarts_ends_it() -> None:
    made = controller(max_restarts=2, workers=1)
    for attempt in range(3):
        assert made.attempt == attempt
        start_pods(made)
        worker = find(made, "workers-0")
        end(find(made, "control-0"), 1)
        made.reconcile()
        end(worker, 75)
        made.reconcile()
    assert made.status == "failed"
    assert made.reason == "maxRestarts = 2 reached; job toy-control-0: BackoffLimitExceeded"


def test_what_a_deleted_jobs_pod_does_is_of_no_account() -> None:
    made = controller()
    start_pods(made)
    old = find(made, "workers-0")
    end(find(made, "control-0"), 1)
    made.reconcile()
    end(old, 93)
    made.reconcile()
    assert (made.status, made.attempt) == ("active", 1)
