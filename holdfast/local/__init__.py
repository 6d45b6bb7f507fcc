"""Runs a synthesized JobSet on this machine, without root: nodes are slots, pods are process trees. A development
tool; production is Kubernetes. It executes YAML and knows nothing of training. Linux only. Of this repository it
imports holdfast.config.problems and the event log, nothing else.
"""

from holdfast.local.folder import RunFolder
from holdfast.local.manifest import load_manifest, read_documents
from holdfast.local.options import RunnerOptions, differences
from holdfast.local.runner import Runner

__all__ = ["RunFolder", "Runner", "RunnerOptions", "differences", "load_manifest", "read_documents"]
