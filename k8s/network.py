"""Who may talk to whom. Only traffic through the kernel: EFA bypasses it, and there the security group decides.

The VPC CNI enforces these where its add-on has `enableNetworkPolicy`; otherwise they change nothing. It decides by
longest prefix, so no rule here has an `except`, which would also cut off what another rule allows
(aws/amazon-vpc-cni-k8s issue 3096).
"""

from __future__ import annotations

from holdfast.config import RunConfig
from holdfast.config.metrics import served_ports
from k8s.placement import Manifest
from k8s.pods import JOBSET_NAME, labels

POD_IDENTITY_AGENT = "169.254.170.23/32"
"""Link-local address, on each node, that hands out AWS credentials."""


def closed_namespace(config: RunConfig) -> Manifest:
    """Nothing may connect to a pod of the namespace unless another policy lets it. Outgoing traffic is not judged."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "default-deny-ingress", "namespace": config.cluster.namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


def job_traffic(config: RunConfig, job: str) -> Manifest:
    """Pods of one JobSet reach one another, DNS, and HTTPS servers; on AWS also FSx and the Pod Identity agent.

    Part of the job, not of the platform: a policy can only name the JobSet whose pods it lets in. Probes come from the
    pod's own node and always pass.
    """
    pods = {"matchLabels": {JOBSET_NAME: job}}
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    egress: list[Manifest] = [
        {"to": [{"podSelector": pods}]},
        {"to": [dns], "ports": [_port(53, "UDP"), _port(53)]},
        {"ports": [_port(443)]},  # S3, the Hugging Face hub
    ]
    if config.instance.ec2:
        # The node mounts FSx, outside of this policy; Lustre's tools in a pod use the same ports.
        lustre = [_port(988), _port(1018) | {"endPort": 1023}]
        egress.append({"to": [{"ipBlock": {"cidr": config.aws.vpc_cidr}}], "ports": lustre})
        egress.append({"to": [{"ipBlock": {"cidr": POD_IDENTITY_AGENT}}], "ports": [_port(80)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job, "namespace": config.cluster.namespace, "labels": labels(job)},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": pods}]}, *_scrapers(config)],
            "egress": egress,
        },
    }


def _scrapers(config: RunConfig) -> list[Manifest]:
    """Prometheus comes from another namespace, and gets at the metrics and at nothing else."""
    ports, namespace = served_ports(config), config.metrics.scraper_namespace
    if not ports or namespace is None:
        return []
    scraper = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    span = {"endPort": ports[-1]} if len(ports) > 1 else {}
    return [{"from": [scraper], "ports": [_port(ports[0]) | span]}]


def _port(number: int, protocol: str = "TCP") -> Manifest:
    return {"protocol": protocol, "port": number}
