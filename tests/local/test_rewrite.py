"""A pod differs from its manifest by the recorded rewrites, and by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.local.manifest import load_manifest, read_documents
from holdfast.local.objects import Container
from holdfast.local.report import PodStarted
from holdfast.local.rewrite import PodFacts, PodPlan, Rewrite, plan_pod
from holdfast.local.volumes import Layout, place
from tests.local.toys import Document, job, jobset, running

ROOT = Path(__file__).parents[2]
LAYOUT = Layout(Path("/somewhere/out"), Path("/tmp/hf-x"))


def container_of(text: str, environment: dict[str, str] | None = None, mounts: tuple[str, ...] = ()) -> Document:
    names = [f"v{index}" for index in range(len(mounts))]
    return job(
        "control",
        text,
        container={
            "env": [{"name": name, "value": value} for name, value in (environment or {}).items()],
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in zip(names, mounts, strict=True)],
            "ports": [{"name": "store", "containerPort": 29400}],
        },
        volumes=[{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names],
    )


def plan(document: Document) -> PodPlan:
    manifest = read_documents([jobset(document)])
    template = manifest.jobset.replicated_jobs[0].job.pod
    host = "toy-control-0-0"
    facts = PodFacts(
        jobset=manifest.jobset,
        pod=f"{host}-abcde",
        fields={},
        host=host,
        placements=place(template, LAYOUT, f"{host}-abcde", 1, "node-0", {}),
        addresses={host: "127.1.2.3"},
        ports={(host, 29400): 23000},
        additions={"PATH": ("/bin", "image")},
    )
    return plan_pod(template.container, facts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/fsx", "/somewhere/out/v0"),
        ("/fsx/runs/a", "/somewhere/out/v0/runs/a"),
        ("--dir=/fsx/a,/fsx/b", "--dir=/somewhere/out/v0/a,/somewhere/out/v0/b"),
        ("cat </fsx/a >/fsx/b;ls '/fsx'", "cat </somewhere/out/v0/a >/somewhere/out/v0/b;ls '/somewhere/out/v0'"),
        ("/fsx/deep/er", "/somewhere/out/v1/er"),
        ("/fsx/deeper", "/somewhere/out/v0/deeper"),
        ("PATH=/bin:/fsx:/usr", "PATH=/bin:/somewhere/out/v0:/usr"),
        ("/fsx2 /fsx-old /fsx.bak /data/fsx ./fsx $HOME/fsx ${X}/fsx ~/fsx", None),
    ],
)
def test_mount_paths_are_replaced_as_whole_components_longest_first(text: str, expected: str | None) -> None:
    assert plan(container_of(text, mounts=("/fsx", "/fsx/deep"))).argv[2] == (expected or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toy-control-0-0.toy", "127.1.2.3"),
        ("toy-control-0-0.toy:29400", "127.1.2.3:23000"),
        ("toy-control-0-0.toy:80", "127.1.2.3:80"),
        ("tcp://toy-control-0-0.toy.space.svc.cluster.local:29400/x", "tcp://127.1.2.3:23000/x"),
        ("toy-control-0-0.toy.space:29400", "127.1.2.3:23000"),
        ("toy-control-0-0 toy-control-0-0.toys my-toy-control-0-0.toy toy-control-0-0.toy.else 29400", None),
    ],
)
def test_names_of_pods_become_addresses_and_their_ports_this_runs(text: str, expected: str | None) -> None:
    assert plan(container_of(text, {"STORE": text})).argv[2] == (expected or text)
    assert plan(container_of(text, {"STORE": text})).environment["STORE"] == (expected or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:29400", "127.1.2.3:23000"),
        ("http://0.0.0.0:29400/metrics,0.0.0.0:29400", "http://127.1.2.3:23000/metrics,127.1.2.3:23000"),
        ("0.0.0.0:80 0.0.0.0:294000 10.0.0.0:29400 0.0.0.0", None),
    ],
)
def test_every_address_at_a_port_that_is_declared_becomes_the_pods_own(text: str, expected: str | None) -> None:
    made = plan(container_of(text, {"LISTEN": text}))
    assert made.argv[2] == made.environment["LISTEN"] == (expected or text)
    noted = {(one.old, one.new) for one in made.rewrites if one.field == "env.LISTEN"}
    assert noted == ({("0.0.0.0:29400", "127.1.2.3:23000")} if expected else set())


def test_interfaces_are_replaced_in_interface_variables_only() -> None:
    environment = plan(
        container_of("eth0", {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "^lo,eth1", "NOTE": "eth0"})
    ).environment
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment["NCCL_SOCKET_IFNAME"] == "^lo,lo"
    assert environment["NOTE"] == "eth0"


def test_references_are_resolved_as_a_kubelet_does() -> None:
    made = plan(container_of("$(B) $(NONE) $$(B) $B", {"A": "1", "B": "$(A)2$(C)", "C": "3"}))
    assert made.environment["B"] == "12$(C)"  # C comes later
    assert made.argv[2] == "12$(C) $(NONE) $(B) $B"


def test_the_manifests_own_variables_win_over_the_images() -> None:
    made = plan(container_of("x", {"PATH": "/mine"}))
    assert made.environment == {"PATH": "/mine"}
    assert not [rewrite for rewrite in made.rewrites if rewrite.field == "env.PATH"]


def test_shared_memory_stays_the_machines_own() -> None:
    document = container_of("ls /dev/shm")
    spec = document["template"]["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    assert plan(document).argv[2] == "ls /dev/shm"


def undone(text: str, field: str, rewrites: tuple[Rewrite, ...]) -> str:
    """`text` with the rewrites of its field applied backwards."""
    for rewrite in reversed([rewrite for rewrite in rewrites if rewrite.field == field]):
        assert rewrite.old is not None and rewrite.new in text
        text = text.replace(rewrite.new, rewrite.old, 1)
    return text


def as_in_the_manifest(
    argv: list[str], environment: dict[str, str], container: Container, rewrites: tuple[Rewrite, ...]
) -> Any:
    """(command + args, environment) with every recorded rewrite undone."""
    added = {rewrite.field for rewrite in rewrites if rewrite.old is None}
    fields = [f"command[{index}]" for index in range(len(container.command))]
    fields += [f"args[{index}]" for index in range(len(container.args))]
    return (
        [undone(text, field, rewrites) for text, field in zip(argv, fields, strict=True)],
        {
            name: undone(value, f"env.{name}", rewrites)
            for name, value in environment.items()
            if f"env.{name}" not in added
        },
    )


def in_yaml(container: dict[str, Any]) -> Any:
    """(command + args, environment) of a container in YAML."""
    return (
        [*container["command"], *container.get("args", [])],
        {
            entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
            for entry in container["env"]
        },
    )


def test_a_real_process_differs_from_its_yaml_by_the_recorded_rewrites_only(tmp_path: Path) -> None:
    show = "tr '\\0' '\\n' </proc/self/environ >/fsx/environment; tr '\\0' '\\n' </proc/self/cmdline >/fsx/command"
    document = container_of(show, {"STORE": "toy-control-0-0.toy:29400", "GLOO_SOCKET_IFNAME": "eth0"}, ("/fsx",))
    container = document["template"]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["name", "/fsx/a"]
    container["env"] += [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    with running(tmp_path / "out", jobset(document)) as run:
        assert run.result().outcome == "succeeded", run.output()
        (started,) = run.of(PodStarted)
        read = run.runner.manifest.jobset.replicated_jobs[0].job.pod.container
    argv = (tmp_path / "out/v0/command").read_text().splitlines()
    lines = (tmp_path / "out/v0/environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    assert as_in_the_manifest(argv, environment, read, started.rewrites) == in_yaml(container)
    assert (environment["POD"], environment["NODE"]) == (started.pod, started.node)
    assert (environment["IP"], environment["SPACE"]) == (started.address, "space")
    assert argv[2] != show and environment["STORE"].startswith(f"{started.address}:")


def test_the_synthesized_manifest_differs_by_the_recorded_rewrites_only(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "k8s/main.py"],
        env={**os.environ, "HOLDFAST_PROFILE": "cpu-test", "HOLDFAST_DIST": str(tmp_path)},
        cwd=ROOT,
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )
    paths = sorted(tmp_path.glob("k8s/*/job/*.yaml"))
    manifest = load_manifest(paths)
    documents = [document for path in paths for document in yaml.safe_load_all(path.read_text())]
    raw = next(document for document in documents if document["kind"] == "JobSet")["spec"]["replicatedJobs"]
    addresses = {host: f"127.1.0.{index}" for index, host in enumerate(manifest.jobset.hosts, 1)}
    ports = {(host, 29400): 23000 for host in addresses if "control" in host}
    for replicated_job, document in zip(manifest.jobset.replicated_jobs, raw, strict=True):
        template = replicated_job.job.pod
        host = manifest.jobset.host(replicated_job.name, 0)
        fields = {
            name: f"value of {name}"
            for variable in template.container.environment
            if (name := variable.field_path) is not None
        }
        facts = PodFacts(
            jobset=manifest.jobset,
            pod=f"{host}-abcde",
            fields=fields,
            host=host,
            placements=place(template, LAYOUT, f"{host}-abcde", 1, "node-0", manifest.config_maps),
            addresses=addresses,
            ports=ports,
            additions={},
        )
        made = plan_pod(template.container, facts)
        original = document["template"]["spec"]["template"]["spec"]["containers"][0]
        undone_pod = as_in_the_manifest(list(made.argv), dict(made.environment), template.container, made.rewrites)
        assert undone_pod == in_yaml(original)
        text = " ".join([*made.argv, *made.environment.values()])
        assert "/fsx" not in text.replace(str(LAYOUT.claim("fsx")), "") and "/run/holdfast" not in text
        assert "29400" not in text and "eth0" not in text and f".{manifest.jobset.name}" not in text
        assert made.environment["HOLDFAST_STORE"] == "127.1.0.1:23000"
        assert made.probe is not None
        if made.probe.command is not None:
            probe = [
                undone(part, f"readinessProbe.command[{index}]", made.rewrites)
                for index, part in enumerate(made.probe.command)
            ]
            assert probe == original["readinessProbe"]["exec"]["command"]
        else:
            assert made.probe.port == 23000
