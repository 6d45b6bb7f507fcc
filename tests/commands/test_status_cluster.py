"""`kubectl get jobset,job,pod,node -o json | holdfast status`, on the objects that this repository synthesizes."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models import JobsetV1alpha2JobSetStatus

from holdfast import cli
from holdfast.commands.cluster_objects import read_cluster
from holdfast.commands.status import RUNBOOK
from holdfast.commands.status_cluster import MEANINGS, MOST_SHOWN, advice, report
from holdfast.config import load_profile, names
from holdfast.run_directory import Terminal
from holdfast.terminal import terminal_id, way_on
from k8s.main import ROOT, use_bundled_node
from tests.commands.cluster_state import ClusterState, Object

KUBERNETES = "1.35"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    """The job of the article's cheapest GPU profile, with a spare."""
    use_bundled_node()
    from k8s.job import manifests

    return list(manifests(load_profile("gpt2-g5x2", ["recovery.spares=1"])).values())


@pytest.fixture
def state(objects: list[Object]) -> ClusterState:
    """It runs, and all is well."""
    return ClusterState(objects, restarts=2)


def lines(state: ClusterState) -> list[str]:
    return list(report(read_cluster(state.dump())))


def line(state: ClusterState, beginning: str) -> str:
    (found,) = (text for text in lines(state) if text.startswith(beginning))
    return found


def next_steps(state: ClusterState) -> list[str]:
    return advice(read_cluster(state.dump()))


def drained(state: ClusterState) -> None:
    state.node_of("workers-0")["spec"]["unschedulable"] = True
    state.pods["workers-0"]["metadata"]["deletionTimestamp"] = "2026-11-30T10:05:00Z"


CHANGES: dict[str, Callable[[ClusterState], object]] = {
    "well": lambda s: None,
    "ended": lambda s: s.end("workers-1", names.EXIT_CONFIG, "seed: it differs"),
    "pending": lambda s: s.leave_pending("workers-2", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
    "failed": lambda s: s.fail("FailedJobs", "jobset failed due to one or more job failures"),
    "not ready": lambda s: s.unready(s.node_of("workers-0"), reason="NodeStatusUnknown", status="Unknown"),
    "drained": drained,
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_states_of_these_tests_are_those_that_the_apis_know(state: ClusterState, change: str) -> None:
    CHANGES[change](state)
    for item in [*state.jobs.values(), *state.pods.values(), *state.nodes.values()]:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    status = state.jobset["status"]
    known = JobsetV1alpha2JobSetStatus.from_dict(copy.deepcopy(status)).to_dict()
    assert json.loads(json.dumps(known, default=str)).keys() == status.keys()
    assert known["replicatedJobsStatus"] == status["replicatedJobsStatus"]


def test_a_run_in_peace_shows_every_pod_with_its_node_and_asks_for_nothing(state: ClusterState) -> None:
    assert line(state, "jobset ") == f"jobset {state.name} in holdfast: running"
    assert line(state, "  restarted") == "  restarted 2 times; 2 of 20 are used up"
    assert line(state, "  workers: ") == "  workers: 3 of 3 ready"
    for seat, pod in state.pods.items():
        assert line(state, f"  {seat}: ").startswith(f"  {seat}: Running, ready on {pod['spec']['nodeName']} (")
    assert line(state, "  node-workers-0") == "  node-workers-0: ready"
    assert next_steps(state) == ["nothing to do"]


@pytest.mark.parametrize("code", [0, 1, 75, 78, 93, 137, 143])
def test_an_exit_code_is_shown_with_its_meaning_here_and_the_last_line_that_the_pod_said(
    state: ClusterState, code: int
) -> None:
    state.end("workers-1", code, f"something before\npod ends with {code}: because")
    shown = line(state, "  workers-1: ")
    assert shown.endswith(f"; exit code {code}, {MEANINGS[code]}: pod ends with {code}: because")


def test_every_code_of_a_pod_has_a_meaning() -> None:
    ours = {value for name, value in vars(names).items() if name.startswith("EXIT_")}
    assert ours <= MEANINGS.keys()


@pytest.mark.parametrize("code", names.TERMINAL_CODES)
def test_a_run_that_has_ended_for_good_points_at_the_way_on(state: ClusterState, code: int) -> None:
    state.end("workers-1", code, "the reason")
    state.fail("FailedJobs", "jobset failed due to one or more job failures")
    assert line(state, "jobset ").endswith(": Failed, FailedJobs: jobset failed due to one or more job failures")
    (step,) = next_steps(state)
    page, _, anchor = step.rpartition(" ")[2].partition("#")
    assert page == RUNBOOK and f"\n## {anchor.replace('-', ' ').capitalize()}\n" in (ROOT / page).read_text()


def test_the_record_that_must_be_cleared_is_named_however_long_the_reason_is(state: ClusterState) -> None:
    record = Terminal(
        names.EXIT_GIVE_UP, f"the same exception {'again and ' * 50}again", rank=1, step=5, attempt="g1-c0-r0"
    )
    state.end("workers-1", record.code, "an id that is cut off")
    state.end("workers-0", record.code, f"TERMINAL.json: {record.reason} {way_on(record)}")
    state.fail("FailedJobs", "jobset failed due to one or more job failures")
    assert terminal_id(record) not in line(state, "  workers-0: ")  # too long for a line
    assert f'resume: {{clear_terminal: "{terminal_id(record)}"}}' in next_steps(state)[0]


def test_a_failed_job_without_a_terminal_code_sends_to_the_logs(state: ClusterState) -> None:
    state.end("control-0", 1)
    state.fail("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
    assert "kubectl logs" in next_steps(state)[0] and "apply job/ again" in next_steps(state)[0]


def test_a_completed_job_asks_for_nothing(state: ClusterState) -> None:
    state.jobset["status"]["terminalState"] = "Completed"
    state.end("control-0", 0)
    state.leave_pending("workers-2", "no room")
    assert line(state, "jobset ").endswith(": Completed")
    assert next_steps(state) == ["nothing to do"]


def test_out_of_memory_is_told_from_another_kill(state: ClusterState) -> None:
    state.end("workers-1", 137, reason="OOMKilled")
    assert "exit code 137, ran out of memory" in line(state, "  workers-1: ")
    assert "ran out of memory" in next_steps(state)[0]


def test_a_pod_without_a_node_says_what_the_scheduler_says(state: ClusterState) -> None:
    state.leave_pending("workers-2", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    shown = line(state, "  workers-2: ")
    assert shown.startswith("  workers-2: Pending (") and shown.endswith("3 Insufficient nvidia.com/gpu.")
    assert "waits for a node" in next_steps(state)[0]


def test_a_container_that_cannot_start_says_why(state: ClusterState) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    state.pods["workers-0"]["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    assert "ImagePullBackOff: Back-off pulling image" in line(state, "  workers-0: ")
    assert "kubectl describe pod" in next_steps(state)[0]


def test_a_node_that_is_not_ready_comes_first_with_its_reason(state: ClusterState) -> None:
    state.unready(state.node_of("workers-1"), reason="NodeStatusUnknown", status="Unknown")
    shown = lines(state)
    first = shown[shown.index("nodes") + 1]
    assert first == "  node-workers-1: NOT READY; Ready=Unknown: NodeStatusUnknown: it said"
    assert next_steps(state)[0].startswith("node-workers-1 is not ready")


def test_what_a_health_agent_says_against_a_ready_node_is_shown(state: ClusterState) -> None:
    state.unready(state.node_of("workers-1"), "AcceleratedHardwareReady", "NvidiaXID79Error")
    assert "AcceleratedHardwareReady=False: NvidiaXID79Error" in line(state, "  node-workers-1: ")
    assert next_steps(state)[0].startswith("node-workers-1 is unwell")


def test_a_drain_is_told_from_a_node_that_is_only_cordoned(state: ClusterState) -> None:
    drained(state)
    state.node_of("workers-1")["spec"]["unschedulable"] = True
    assert line(state, "  node-workers-0: ") == "  node-workers-0: ready; draining"
    assert line(state, "  node-workers-1: ") == "  node-workers-1: ready; cordoned"
    assert "Running, leaving, ready" in line(state, "  workers-0: ")


def test_the_taint_of_a_new_node_is_shown_and_that_of_every_gpu_node_is_not(state: ClusterState) -> None:
    taint = {"key": names.STORAGE_TAINT, "effect": "NoExecute"}
    state.node_of("workers-2")["spec"]["taints"].append(taint)
    assert line(state, "  node-workers-2: ") == f"  node-workers-2: ready; tainted {names.STORAGE_TAINT}"
    assert "cannot mount FSx yet" in next_steps(state)[0]


def test_a_pod_on_a_node_that_is_gone_is_noticed(state: ClusterState) -> None:
    state.nodes.pop("node-workers-1")
    assert "node-workers-1, which is gone" in next_steps(state)[0]


def test_a_seat_whose_pods_keep_failing_is_named(state: ClusterState) -> None:
    state.jobs["workers-1"]["status"]["failed"] = 4
    assert "4 pods failed before" in line(state, "  workers-1: ")
    assert next_steps(state)[0].startswith("4 pods of seat workers-1 have failed")


def test_the_last_generations_are_announced(objects: list[Object]) -> None:
    assert next_steps(ClusterState(objects, restarts=17)) == ["nothing to do"]
    assert "may restart 2 more times" in next_steps(ClusterState(objects, restarts=18))[0]


def test_a_suspended_job_says_how_to_go_on(state: ClusterState) -> None:
    state.jobset["spec"]["suspend"] = True
    assert line(state, "jobset ").endswith(": suspended")
    assert next_steps(state)[0].startswith("it is suspended: kubectl patch jobset")


def test_long_lists_show_what_is_wrong_and_count_the_rest(objects: list[Object]) -> None:
    many = copy.deepcopy(objects)
    next(item for item in many if item["kind"] == "JobSet")["spec"]["replicatedJobs"][1]["replicas"] = 500
    state = ClusterState(many)
    state.end("workers-499", 1, "this one")
    shown = lines(state)
    assert any("this one" in text for text in shown)
    assert f"  ... and {501 - MOST_SHOWN} more pods" in shown and f"  ... and {501 - MOST_SHOWN} more nodes" in shown


def test_jobs_of_the_same_name_in_two_namespaces_are_kept_apart(state: ClusterState, objects: list[Object]) -> None:
    other = ClusterState(objects)
    for item in [other.jobset, *other.jobs.values(), *other.pods.values()]:
        item["metadata"]["namespace"] = "elsewhere"
    other.end("workers-1", 93, "of elsewhere")
    both = json.dumps({"kind": "List", "items": [*state.items, *other.items]})
    shown = "\n".join(report(read_cluster(both)))
    here, there = shown.split("jobset ")[1:3]
    assert "of elsewhere" not in here and "of elsewhere" in there


def test_foreign_objects_among_ours_are_left_out(state: ClusterState) -> None:
    foreign: list[Any] = [
        {"kind": "Pod", "metadata": {"name": "coredns", "namespace": "kube-system"}},
        {"kind": "Service", "metadata": {"name": "kubernetes"}, "spec": [1]},
        {"kind": "Node", "metadata": {"name": "of-somebody-else"}, "status": {"conditions": "none"}},
    ]
    before = lines(state)
    assert list(report(read_cluster(json.dumps({"items": [*foreign, *state.items]})))) == before


@pytest.mark.parametrize("broken", ["status", "spec", "containerStatuses", "conditions"])
def test_a_field_of_another_type_counts_as_not_said(state: ClusterState, broken: str) -> None:
    for item in state.items:
        for section in (item, item.get("status", {})):
            if broken in section:
                section[broken] = ["surprise"]
    assert any(text.startswith(f"jobset {state.name}") for text in lines(state))


@pytest.mark.parametrize("words", [[], ["-"]])
def test_the_command_reads_standard_input(
    state: ClusterState, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = io.TextIOWrapper(io.BytesIO(state.dump().encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", content)
    assert cli.main(["status", *words]) == 0
    assert capsys.readouterr().out.splitlines() == lines(state)
