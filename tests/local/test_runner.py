"""The runner executes JobSets with real processes, as a cluster would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.config.problems import ConfigError
from holdfast.local import RunFolder, Runner, RunnerOptions, read_documents
from holdfast.local.processes import processes_with_token
from holdfast.local.report import JobFailed, JobSetRestarted, PodEnded, PodPending, PodReady, PodStarted, RunEnded
from tests.local.toys import FOREVER, job, jobset, running

CONTROL = job("control", "sleep 0.2; exit 0")
CLAIM = {"name": "storage", "persistentVolumeClaim": {"claimName": "fsx"}}
STORAGE = {"volumeMounts": [{"name": "storage", "mountPath": "/fsx"}]}


def test_the_run_succeeds_with_control_and_ends_the_others_with_sigterm(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL, job("workers", FOREVER, replicas=2, depends_on="control"))) as run:
        ended = run.result()
        assert (ended.outcome, ended.code, ended.restarts) == ("succeeded", 0, 0)
        assert sorted((pod.job, pod.code, pod.expected) for pod in run.of(PodEnded)) == [
            ("toy-control-0", 0, True),
            ("toy-workers-0", 75, True),
            ("toy-workers-1", 75, True),
        ]
        assert len({pod.address for pod in run.of(PodStarted)}) == len({pod.node for pod in run.of(PodStarted)}) == 3


def test_events_name_pods_nodes_and_codes(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(CONTROL)) as run:
        run.result()
    (log,) = (tmp_path / "out/events").iterdir()
    anchor, *events = [json.loads(line) for line in log.read_text().splitlines()]
    assert (anchor["source"], [event["name"] for event in events]) == (
        "runner",
        ["run_start", "pod_created", "pod_exit", "run_end"],
    )
    created, ended = events[1:3]
    assert (created["job"], created["node"], created["attempt"]) == ("toy-control-0", "control-node-0", 0)
    assert (ended["pod"], ended["code"], events[3]["code"]) == (created["pod"], 0, 0)


def test_a_failing_worker_comes_back_and_its_last_lines_are_told(tmp_path: Path) -> None:
    script = "echo broken; [ -e /fsx/again ] && exec sleep 9; touch /fsx/again; exit 1"
    control = job(
        "control", "until [ -e /fsx/again ]; do sleep 0.05; done; sleep 0.4", container=STORAGE, volumes=[CLAIM]
    )
    workers = job("workers", script, backoff_limit=9, container=STORAGE, volumes=[CLAIM])
    with running(tmp_path / "out", jobset(control, workers)) as run:
        assert run.result().outcome == "succeeded"
        failed, *_ = [pod for pod in run.of(PodEnded) if not pod.expected]
        assert (failed.code, failed.reason, failed.tail) == (1, "exit code 1", ("broken",))
        assert failed.log.read_text() == "broken\n"
        assert len([pod for pod in run.of(PodStarted) if pod.job == "toy-workers-0"]) == 2


def test_exit_code_93_fails_the_run_with_93(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(job("control", FOREVER), job("workers", "exit 93", backoff_limit=9))) as run:
        ended = run.result()
        assert (ended.outcome, ended.code) == ("failed", 93)
        assert run.of(JobFailed)[0].reason == "PodFailurePolicy"


def test_control_failing_restarts_all_pods_with_the_next_attempt_up_to_the_limit(tmp_path: Path) -> None:
    environment = {
        "env": [
            {
                "name": "ATTEMPT",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}},
            }
        ]
    }
    control = job("control", 'echo "attempt $ATTEMPT"; sleep 0.2; exit 1', container=environment)
    workers = job("workers", FOREVER, replicas=2, backoff_limit=9, depends_on="control")
    with running(tmp_path / "out", jobset(control, workers, max_restarts=2)) as run:
        ended = run.result()
        assert (ended.outcome, ended.code, ended.restarts) == ("failed", 1, 2)
        assert "maxRestarts = 2 reached" in ended.reason
        assert [restart.attempt for restart in run.of(JobSetRestarted)] == [1, 2]
        assert sorted(run.output().splitlines()) == ["attempt 0", "attempt 1", "attempt 2"]
        assert sorted(pod.attempt for pod in run.of(PodStarted) if "workers" in pod.job) == [0, 0, 1, 1, 2, 2]


def test_workers_start_only_when_the_store_of_control_listens(tmp_path: Path) -> None:
    server = (
        "import os, socket, time; time.sleep(0.5); s = socket.socket();"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        "s.bind(('', int(os.environ['STORE'].split(':')[1]))); s.listen(); time.sleep(60)"
    )
    client = (
        "import os, socket; host, port = os.environ['STORE'].split(':');"
        "socket.create_connection((host, int(port)), timeout=5).getpeername(); print('connected to', host)"
    )
    store = {"env": [{"name": "STORE", "value": "toy-control-0-0.toy:29400"}]}
    control = job(
        "control",
        "",
        container={
            **store,
            "command": ["python", "-S", "-c", server],
            "ports": [{"name": "store", "containerPort": 29400}],
            "readinessProbe": {"tcpSocket": {"port": "store"}, "periodSeconds": 2},
        },
    )
    workers = job("workers", "", container={**store, "command": ["python", "-S", "-c", client]}, depends_on="control")
    with running(tmp_path / "out", jobset(control, workers, success="workers")) as run:
        assert run.result().outcome == "succeeded"
        ready = next(happening.at for happening in run.of(PodReady) if "control" in happening.pod)
        control_start, worker_start = run.of(PodStarted)
        assert control_start.at + 0.5 < ready <= worker_start.at
        assert f"connected to {control_start.address}" in run.output()


def test_an_exec_probe_makes_a_pod_ready_and_unready(tmp_path: Path) -> None:
    script = "sleep 0.3; touch /scratch/ready; sleep 0.6; rm /scratch/ready; sleep 1"
    container = {
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "readinessProbe": {
            "exec": {"command": ["test", "-f", "/scratch/ready"]},
            "periodSeconds": 0.1,
            "failureThreshold": 1,
        },
    }
    control = job("control", script, container=container, volumes=[{"name": "scratch", "emptyDir": {}}])
    with running(tmp_path / "out", jobset(control)) as run:
        run.result()
        assert [happening.ready for happening in run.of(PodReady)] == [True, False]


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(tmp_path: Path) -> None:
    stubborn = job("workers", "trap '' TERM; while :; do sleep 0.05; done", depends_on="control", grace_s=1)
    with running(tmp_path / "out", jobset(CONTROL, stubborn)) as run:
        run.result()
        control, worker = run.of(PodEnded)
        assert worker.code == 137
        assert 0.9 < worker.at - control.at < 5


def test_pod_files_go_with_the_pod_and_shared_files_and_logs_stay(tmp_path: Path) -> None:
    volumes = [CLAIM, {"name": "scratch", "emptyDir": {}}, {"name": "config", "configMap": {"name": "settings"}}]
    mounts = [("storage", "/fsx"), ("scratch", "/run/scratch"), ("config", "/etc/settings")]
    container = {"volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts]}
    script = "cp /etc/settings/run.yaml /run/scratch/copy && cp /run/scratch/copy /fsx/copy && pwd"
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"run.yaml": "a: /fsx\n"}}
    out = tmp_path / "out"
    with running(out, settings, jobset(job("control", script, container=container, volumes=volumes))) as run:
        assert run.result().outcome == "succeeded", run.output()
        folder = run.runner.folder.layout.alias
        (pod,) = run.of(PodStarted)
        scratch = next(rewrite.new for rewrite in pod.rewrites if rewrite.old == "/run/scratch")
        assert scratch.startswith(str(folder)) and len(scratch) < 40  # room for the name of a unix socket
    assert (out / "fsx/copy").read_text() == "a: /fsx\n"  # the content of files is never touched
    assert [path.name for path in (out / "pods").iterdir()] == ["logs"]
    assert not folder.exists()


def test_more_pods_than_nodes_wait_and_a_node_that_joins_lets_them_start(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(job("control", FOREVER))) as run:
        first = run.pod("control")
        run.runner.cluster._replace_after_s = None
        run.runner.kill_node(first.node or "").result(5)
        run.ended = None
        assert run.result().outcome == "failed"  # control may not fail once: no restarts are allowed here
    workers = job("workers", FOREVER, backoff_limit=9)
    with running(tmp_path / "out", jobset(job("control", FOREVER), workers)) as run:
        first = run.pod("workers")
        run.runner.cluster._replace_after_s = None
        run.runner.kill_node(first.node or "").result(5)
        while not run.of(PodPending):
            assert run.ended is None
        assert run.runner.add_node("workers").result(5) == "workers-node-1"
        second = run.pod("workers", not_named=first.name)
        assert second.node == "workers-node-1" and second.address != first.address


def test_an_error_in_an_observer_leaves_no_process_alive(tmp_path: Path) -> None:
    def explode(happening: object) -> None:
        if isinstance(happening, PodReady):
            raise ValueError("observer")

    with RunFolder(tmp_path / "out") as folder:
        runner = Runner(
            read_documents([jobset(job("control", FOREVER))]), folder, events=tmp_path / "events", observers=[explode]
        )
        with pytest.raises(ValueError, match="observer"):
            runner.run(handle_signals=False)
        assert processes_with_token(folder.token) == []


def test_a_run_that_lasts_longer_than_its_limit_is_ended(tmp_path: Path) -> None:
    with running(tmp_path / "out", jobset(job("control", FOREVER)), options=RunnerOptions(limit_s=0.4)) as run:
        ended = run.result()
        assert (ended.outcome, ended.code, ended.reason) == ("interrupted", 1, "the limit of 0.4 s is over")
        assert [pod.reason for pod in run.of(PodEnded)] == [ended.reason]


def test_a_manifest_that_wants_gpus_is_refused_where_there_are_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    script = 'echo "gpu $CUDA_VISIBLE_DEVICES"'
    two, three = (jobset(job("control", script, replicas=count, container=gpus)) for count in (2, 3))
    with (
        pytest.raises(ConfigError, match=r"nvidia.com/gpu = 3: this machine has 2 GPUs"),
        running(tmp_path / "a", three),
    ):
        pass
    with running(tmp_path / "b", two) as run:
        assert run.result() == RunEnded("succeeded", run.result().reason, 0, 0, at=run.result().at)
        assert sorted(run.output().splitlines()) == ["gpu 4", "gpu 7"]


def test_nodes_may_share_a_gpu_and_are_hosts_of_their_own_to_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL refuses two ranks on one GPU of one host; it tells hosts apart by NCCL_HOSTID."""
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    one, two = ({"resources": {"limits": {"nvidia.com/gpu": count}}} for count in (1, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,4,7")
    script = 'echo "$CUDA_VISIBLE_DEVICES $HOSTNAME ${NCCL_HOSTID:-none}"'
    with running(tmp_path / "shared", jobset(job("control", script, replicas=3, container=one))) as run:
        assert run.result().outcome == "succeeded"
        pods = sorted(line.split() for line in run.output().splitlines())
    assert [gpu for gpu, *_ in pods] == ["4", "4", "7"]
    assert len({host for _, host, _ in pods}) == 3
    assert [own for *_, own in pods] == [pods[0][1], pods[1][1], "none"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,4")
    with (
        pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES = '4,4': one node would have a GPU twice"),
        running(tmp_path / "twice", jobset(job("control", script, container=two))),
    ):
        pass


def test_the_node_that_replaces_a_lost_one_has_its_gpu_and_shares_it_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,4")
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    script = f'echo "$CUDA_VISIBLE_DEVICES $HOSTNAME $NCCL_HOSTID"; {FOREVER}'
    workers = job("workers", script, replicas=2, backoff_limit=9, container=gpu)
    with running(tmp_path / "out", jobset(job("control", FOREVER), workers)) as run:
        first = run.pod("workers")
        run.runner.kill_node(first.node or "").result(5)
        second = run.pod("workers", not_named=first.name)
        assert second.node != first.node
        gpus, name, own = (tmp_path / "out/pods/logs" / f"{second.name}.log").read_text().split()
        assert (gpus, own) == ("4", name)
