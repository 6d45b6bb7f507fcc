"""What the JobSet must be for recovery to work: values, compared with config and with the launcher's command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import launch
from holdfast.config import RunConfig, load_profile, names, profile_names
from tests.k8s.job_view import Job, Object

Render = Callable[..., list[Object]]


def launcher_range(config: RunConfig) -> tuple[int, int]:
    argv = launch.launcher_argv(
        config,
        generation=0,
        nodes=config.cluster.nodes,
        store="s:1",
        local_addr="a",
        group_rank=0,
        master="m",
        rank_args=[],
    )
    (option,) = (argument for argument in argv if argument.startswith("--nnodes="))
    low, high = option.removeprefix("--nnodes=").split(":")
    return int(low), int(high)


# case-12: a fixed node count closes the rendezvous when a spare is there


def test_four_nodes_and_a_spare_are_five_pods_in_a_range_from_four(render: Render) -> None:
    job = Job(render("cpu-demo", "cluster.nodes=4", "recovery.spares=1", "recovery.replacement_budget=0"))
    assert job.workers["replicas"] == 5
    assert launcher_range(job.config) == (4, 5)


@pytest.mark.parametrize("profile", profile_names())
def test_the_launcher_range_starts_at_the_nodes_and_holds_every_pod(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    low, high = launcher_range(job.config)
    assert low == job.config.cluster.nodes
    assert job.workers["replicas"] == job.config.cluster.nodes + job.config.recovery.spares <= high
    assert high == job.config.max_nodes


# case-29: no address before Ready, gloo on loopback


@pytest.mark.parametrize("profile", profile_names())
def test_names_resolve_before_pods_are_ready_and_the_store_is_the_control_pod(
    jobs: dict[str, Job], profile: str
) -> None:
    job = jobs[profile]
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name}
    assert job.spec["network"] == network
    for role in (names.CONTROL, names.WORKERS):
        assert job.environment(role)[names.ENV_STORE]["value"] == f"{job.name}-control-0-0.{job.name}:29400"
        assert "hostNetwork" not in job.pod(role)
    assert job.container(names.CONTROL)["ports"][0] == {"name": "store", "containerPort": 29400}
    assert job.container(names.CONTROL)["readinessProbe"]["tcpSocket"] == {"port": 29400}
    assert job.environment(names.WORKERS)["GLOO_SOCKET_IFNAME"]["value"] == "eth0"


# case-32: who restarts what, and names that change with what cannot


@pytest.mark.parametrize("profile", profile_names())
def test_only_kubernetes_replaces_pods_and_only_the_launcher_restarts_in_them(
    jobs: dict[str, Job], profile: str
) -> None:
    job = jobs[profile]
    for part, limit in ((job.control, 0), (job.workers, 2147483647)):
        spec = part["template"]["spec"]
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["completionMode"] == "Indexed"
        assert (spec["completions"], spec["parallelism"], spec["podReplacementPolicy"]) == (1, 1, "Failed")
        assert spec["backoffLimit"] == limit
    assert (job.control["replicas"], job.control["name"], job.workers["name"]) == (1, "control", "workers")


@pytest.mark.parametrize("change", ["image=repo/trainer@sha256:abc", "training.steps=61", "cluster.grace_period_s=11"])
def test_a_changed_image_or_config_is_a_job_of_another_name(render: Render, change: str) -> None:
    before, after = Job(render("cpu-demo")), Job(render("cpu-demo", change))
    assert before.name != after.name
    assert before.config_map["metadata"]["name"] != after.config_map["metadata"]["name"]
    assert before.config_map["metadata"]["annotations"] != after.config_map["metadata"]["annotations"]


def test_a_pod_template_that_changes_with_our_code_is_a_job_of_another_name(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Job(render("cpu-demo")).name
    monkeypatch.setattr("k8s.pods.CONTROL_GRACE_S", 31)
    assert Job(render("cpu-demo")).name != before


def test_the_same_input_is_a_job_of_the_same_name(render: Render) -> None:
    assert render("cpu-demo") == render("cpu-demo")


# exit codes and generations


@pytest.mark.parametrize("profile", profile_names())
def test_exit_codes_78_and_93_fail_the_jobset_from_either_role(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for part, container in ((job.control, "control"), (job.workers, "trainer")):
        first = part["template"]["spec"]["podFailurePolicy"]["rules"][0]
        codes = {"containerName": container, "operator": "In", "values": [78, 93]}
        assert first == {"action": "FailJob", "onExitCodes": codes}
    policy = job.spec["failurePolicy"]
    assert policy["rules"] == [
        {"name": "terminal", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    assert policy["maxRestarts"] == job.config.recovery.max_generations
    assert policy["restartStrategy"] == "Recreate"


@pytest.mark.parametrize("profile", profile_names())
def test_a_disruption_is_ignored_on_workers_and_ends_a_generation_on_control(
    jobs: dict[str, Job], profile: str
) -> None:
    job = jobs[profile]
    control, workers = (part["template"]["spec"]["podFailurePolicy"]["rules"] for part in (job.control, job.workers))
    assert len(control) == 1
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert workers[1:] == [ignored]
    assert job.spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["control"]}


@pytest.mark.parametrize("profile", profile_names())
def test_budgets_let_a_drain_take_one_worker_and_never_control(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for role, keep in (("control", 1), ("workers", job.config.pods - 1)):
        budget = job.budgets[f"{job.name}-{role}"]
        assert budget["minAvailable"] == keep
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert budget["selector"]["matchLabels"] == {
            "jobset.sigs.k8s.io/jobset-name": job.name,
            "jobset.sigs.k8s.io/replicatedjob-name": role,
        }


@pytest.mark.parametrize("profile", profile_names())
def test_a_pod_runs_our_supervisor_and_is_judged_by_readiness_alone(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for role, argument in (("control", "control"), ("workers", "worker")):
        container = job.container(role)
        run_dir = f"{job.config.storage.mount_path}/runs/{job.config.name}"
        assert container["command"] == launch.pod_command(job.config, argument)
        assert container["command"][-4:] == ["--config", "/etc/holdfast/run.yaml", "--run-dir", run_dir]
        assert [key for key in container if key.endswith("Probe")] == ["readinessProbe"]
        assert container["image"] == job.config.image
    ready = {"command": ["test", "-f", "/run/holdfast/ready"]}
    assert job.container(names.WORKERS)["readinessProbe"]["exec"] == ready


@pytest.mark.parametrize("profile", profile_names())
def test_every_variable_of_the_launch_contract_reaches_the_pod(jobs: dict[str, Job], profile: str) -> None:
    job = jobs[profile]
    for role, argument in (("control", "control"), ("workers", "worker")):
        expected: dict[str, Object] = {}
        for variable in launch.pod_environment(job.config, job.name, argument):
            source = {"valueFrom": {"fieldRef": {"fieldPath": variable.field_path}}}
            value = {"value": variable.value} if variable.field_path is None else source
            expected[variable.name] = {"name": variable.name, **value}
        assert job.environment(role) == expected


@pytest.mark.parametrize("profile", profile_names())
def test_the_longest_run_name_still_fits_with_a_thousand_nodes(render: Render, profile: str) -> None:
    batch = 1024 * load_profile(profile).cluster.ranks_per_node * load_profile(profile).training.micro_batch_size
    job = Job(render(profile, "name=" + "n" * 28, "cluster.nodes=1024", f"training.global_batch_size={batch}"))
    assert len(f"{job.name}-workers-{job.workers['replicas'] - 1}-0-abcde") <= 63
