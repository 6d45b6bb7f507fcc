"""The pod template of a Job in YAML -> PodTemplate."""

from __future__ import annotations

import re
from typing import Any

from holdfast.local.fields import Fields
from holdfast.local.objects import Container, PodTemplate, Probe, Variable, Volume

GPU = "nvidia.com/gpu"
# No meaning where a node is a slot of this machine and the image is this interpreter: placement, security, image.
_POD = {
    "affinity", "automountServiceAccountToken", "dnsPolicy", "enableServiceLinks", "hostNetwork", "imagePullSecrets",
    "nodeSelector", "os", "priorityClassName", "runtimeClassName", "schedulerName", "securityContext",
    "serviceAccountName", "tolerations", "topologySpreadConstraints",
}  # fmt: skip
_CONTAINER = {"image", "imagePullPolicy", "securityContext", "terminationMessagePath", "terminationMessagePolicy"}
_MOUNT = {"readOnly", "recursiveReadOnly", "mountPropagation"}
_FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.nodeName|status\.(podIP|hostIP)"
)


def read_pod(fields: Fields) -> PodTemplate:
    """The template; what is wrong or not supported goes into the findings."""
    metadata, spec = fields.section("metadata"), fields.section("spec")
    spec.expect("restartPolicy", "Never")
    containers = spec.sections("containers")
    if len(containers) != 1:
        spec.findings.unsupported(
            f"{spec.where}.containers", len(containers), "the local runner runs one container per pod"
        )
    container = containers[0] if containers else Fields(f"{spec.where}.containers.0", {}, spec.findings)
    resources = container.section("resources")
    gpus = max(_gpus(resources.section(key)) for key in ("limits", "requests"))
    resources.done()
    template = PodTemplate(
        labels=metadata.mapping("labels"),
        annotations=metadata.mapping("annotations"),
        grace_period_s=spec.take("terminationGracePeriodSeconds", float, 30.0),
        volumes={volume.name: volume for volume in map(_volume, spec.sections("volumes"))},
        container=_container(container),
        gpus=gpus,
    )
    for path, volume in template.container.mounts:
        if volume not in template.volumes:
            spec.findings.unsupported(f"{container.where}.volumeMounts.{path}", volume, "the pod has no such volume")
    metadata.done({"creationTimestamp"})
    spec.done(_POD)
    fields.done()
    return template


def _gpus(fields: Fields) -> int:
    gpus = fields.take(GPU, int, 0)
    fields.done({"cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "vpc.amazonaws.com/efa"})
    return gpus


def _container(fields: Fields) -> Container:
    container = Container(
        name=fields.take("name", str, ""),
        command=fields.strings("command"),
        args=fields.strings("args"),
        environment=tuple(variable for entry in fields.sections("env") if (variable := _variable(entry)) is not None),
        ports=tuple(_port(entry) for entry in fields.sections("ports")),
        mounts=tuple(_mount(entry) for entry in fields.sections("volumeMounts")),
        readiness=_probe(fields.section("readinessProbe")) if "readinessProbe" in fields else None,
    )
    probe = container.readiness
    if probe is not None and probe.command is None and not container.port_number(probe.port):
        fields.findings.unsupported(
            f"{fields.where}.readinessProbe", probe.port, "it needs a command or a declared port"
        )
    if not container.command:
        fields.findings.unsupported(f"{fields.where}.command", None, "an image's own entry point is not known here")
    fields.done(_CONTAINER)
    return container


def _variable(fields: Fields) -> Variable | None:
    source = fields.section("valueFrom")
    field_path = source.section("fieldRef")
    secret = source.section("secretKeyRef")
    name = fields.take("name", str, "")
    if "name" in secret and secret.take("optional", bool, False):
        # As on a cluster that lacks the secret.
        secret.done({"name", "key"})
        return None
    variable = Variable(name, fields.take("value", str, ""), field_path.take("fieldPath", str, "") or None)
    if variable.field_path is not None and not _FIELD_PATH.fullmatch(variable.field_path):
        fields.findings.unsupported(f"{field_path.where}.fieldPath", variable.field_path)
    field_path.done({"apiVersion"})
    secret.done()
    source.done()
    fields.done()
    return variable


def _port(fields: Fields) -> tuple[str, int]:
    port = (fields.take("name", str, ""), fields.take("containerPort", int, 0))
    fields.expect("protocol", "TCP")
    fields.done()
    return port


def _mount(fields: Fields) -> tuple[str, str]:
    mount = (fields.take("mountPath", str, "").rstrip("/"), fields.take("name", str, ""))
    fields.done(_MOUNT)
    if not mount[0]:
        fields.findings.unsupported(f"{fields.where}.mountPath", "/", "a pod's root is the machine's root here")
    return mount


def _probe(fields: Fields) -> Probe:
    command, tcp = fields.section("exec"), fields.section("tcpSocket")
    probe = Probe(
        command=command.strings("command") or None,
        port=tcp.take("port", _port_reference, None),
        initial_delay_s=fields.take("initialDelaySeconds", float, 0.0),
        period_s=fields.take("periodSeconds", float, 10.0),
        timeout_s=fields.take("timeoutSeconds", float, 1.0),
        success_threshold=fields.take("successThreshold", int, 1),
        failure_threshold=fields.take("failureThreshold", int, 3),
    )
    command.done()
    tcp.done()
    fields.done()
    return probe


def _port_reference(value: Any) -> int | str | None:
    return value if isinstance(value, int) else str(value)


def _volume(fields: Fields) -> Volume:
    name = fields.take("name", str, "")
    volume = Volume(name, "empty", "")
    if "persistentVolumeClaim" in fields:
        claim = fields.section("persistentVolumeClaim")
        volume = Volume(name, "claim", claim.take("claimName", str, ""))
        claim.done({"readOnly"})
    elif "configMap" in fields:
        config = fields.section("configMap")
        volume = Volume(name, "config", config.take("name", str, ""))
        config.done({"defaultMode", "optional"})
    elif "hostPath" in fields:
        host = fields.section("hostPath")
        volume = Volume(name, "host", host.take("path", str, ""))
        host.done({"type"})
    elif "emptyDir" in fields:
        empty = fields.section("emptyDir")
        volume = Volume(name, "memory" if empty.take("medium", str, "") == "Memory" else "empty", "")
        empty.done({"sizeLimit"})
    fields.done()
    return volume
