"""Device plugins: the DaemonSets that turn a node's GPUs and EFA interfaces into resources which pods ask for.

The EKS images of AL2023 bring drivers and the container toolkit, but neither plugin. Never run them beside the GPU
Operator's copy or a DRA driver for the same devices.
"""

from __future__ import annotations

from k8s.placement import GPU_NODES, GPU_POOL_TAINTS, Manifest, toleration

NAMESPACE = "kube-system"
NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
EFA_IMAGE = "eks/aws-efa-k8s-device-plugin:v0.5.20"
"""Below the region's registry."""
PLUGIN_SOCKETS = "/var/lib/kubelet/device-plugins"
"""Where the kubelet and its plugins meet."""


def nvidia_plugin() -> Manifest:
    """DaemonSet that offers nvidia.com/gpu. Without privileges: the container toolkit gives it the driver."""
    container = {
        "image": NVIDIA_IMAGE,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "plugins", "mountPath": PLUGIN_SOCKETS}],
    }
    pod = {"volumes": [_host_path("plugins", PLUGIN_SOCKETS, "Directory")]}
    return _daemon_set("nvidia-device-plugin", container, pod)


def efa_plugin(registry: str) -> Manifest:
    """DaemonSet that offers vpc.amazonaws.com/efa. registry: host name of the region's EKS images."""
    container = {
        "image": f"{registry}/{EFA_IMAGE}",
        # Its vendor's chart runs it so: it opens the uverbs devices of the node, which no plugin hands to it.
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "volumeMounts": [
            {"name": "plugins", "mountPath": PLUGIN_SOCKETS},
            {"name": "infiniband", "mountPath": "/dev/infiniband/"},
            {"name": "neuron-tools", "mountPath": "/opt/aws/neuron/"},
        ],
    }
    pod = {
        "hostNetwork": True,
        "volumes": [
            _host_path("plugins", PLUGIN_SOCKETS, "Directory"),
            _host_path("infiniband", "/dev/infiniband/", "Directory"),
            # Empty on a GPU node; as in its vendor's chart, so that the plugin finds what it may look for.
            _host_path("neuron-tools", "/opt/aws/neuron/", "DirectoryOrCreate"),
        ],
    }
    return _daemon_set("efa-device-plugin", container, pod)


def _daemon_set(name: str, container: Manifest, pod: Manifest) -> Manifest:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "holdfast"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            # Pods keep their devices while a plugin is replaced; new ones wait a moment.
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",  # evicted last: without it the node has no devices
                    "automountServiceAccountToken": False,
                    "nodeSelector": GPU_NODES,
                    # The start-up taint too: devices are ready by the time that FSx is.
                    "tolerations": [toleration(taint) for taint in GPU_POOL_TAINTS],
                    "containers": [{"name": "plugin", "imagePullPolicy": "IfNotPresent", **container}],
                    **pod,
                },
            },
        },
    }


def _host_path(name: str, path: str, kind: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
