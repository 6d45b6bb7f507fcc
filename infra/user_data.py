"""User data of a GPU node (Amazon Linux 2023, nodeadm): MIME parts that EKS merges with its own. Pure text.

EKS adds the cluster's details itself, because the node group names no AMI of ours.
"""

from __future__ import annotations

from holdfast.config.instances import Instance

_BOUNDARY = "//HOLDFAST//"
_PAGE_MIB = 2

_NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""
"""One array of all local NVMe disks at /mnt/k8s-disks/0, with containerd and pod storage on it."""

_HUGE_PAGES = """\
#!/bin/bash
# The kubelet counts huge pages once, when it starts, and cloud-init ends before that. Never fewer than are there: the
# EFA driver's own set-up may have reserved more.
set -euo pipefail
wanted={pages}
if [ "$(cat /proc/sys/vm/nr_hugepages)" -lt "$wanted" ]; then
  echo "vm.nr_hugepages = $wanted" > /etc/sysctl.d/90-holdfast-hugepages.conf
  sysctl --load=/etc/sysctl.d/90-holdfast-hugepages.conf
fi
got=$(cat /proc/sys/vm/nr_hugepages)
if [ "$got" -lt "$wanted" ]; then
  echo "holdfast: $got huge pages of 2 MiB, $wanted wanted: training pods will stay Pending on this node" >&2
  exit 1
fi
"""


def huge_pages(instance: Instance) -> int:
    """2-MiB pages that a node reserves: what a worker pod requests (instance.hugepages_mib), no number of its own."""
    return -(-instance.hugepages_mib // _PAGE_MIB)


def user_data(instance: Instance) -> str | None:
    """The MIME document, not yet base64; None for a type that needs no set-up of its own."""
    parts = []
    if instance.local_nvme:
        parts.append(("application/node.eks.aws", _NODE_CONFIG))
    if instance.hugepages_mib:
        parts.append(('text/x-shellscript; charset="us-ascii"', _HUGE_PAGES.format(pages=huge_pages(instance))))
    if not parts:
        return None
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', ""]
    for content_type, text in parts:
        lines += [f"--{_BOUNDARY}", f"Content-Type: {content_type}", "", text]
    return "\n".join([*lines, f"--{_BOUNDARY}--", ""])
