"""`holdfast run` with a toy manifest in place of the synthesized one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.commands import run_job
from holdfast.config import load_file
from tests.local.toys import Document, job, jobset

TOY = Path(__file__).with_name("toy_training.py")
FIELDS = {
    "POD": "metadata.name",
    "NODE": "spec.nodeName",
    "GROUP_RANK": "metadata.labels['jobset.sigs.k8s.io/job-index']",
}


def training(role: str, run_dir: str, steps: int, **more: Any) -> Document:
    """A replicated job that runs the toy training."""
    container = {
        "command": ["python", str(TOY), role, run_dir, str(steps)],
        "env": [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in FIELDS.items()],
        "volumeMounts": [{"name": "storage", "mountPath": "/fsx"}],
    }
    volumes = [{"name": "storage", "persistentVolumeClaim": {"claimName": "fsx"}}]
    name = "control" if role == "control" else "workers"
    return job(name, "", container=container, volumes=volumes, **more)


@pytest.fixture
def toy_synthesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synthesis gives a JobSet of the profile's name and size whose pods run the toy training."""

    def synthesize(profile: Path, dist: Path) -> list[Path]:
        config = load_file(profile)
        run_dir, steps = str(config.run_dir), config.training.steps
        document = jobset(
            training("control", run_dir, steps),
            training("worker", run_dir, steps, replicas=config.pods, backoff_limit=9, depends_on="control"),
            max_restarts=3,
        )
        dist.mkdir(parents=True, exist_ok=True)
        (dist / "jobset.yaml").write_text(yaml.safe_dump(document))
        return [dist / "jobset.yaml"]

    monkeypatch.setattr(run_job, "synthesize", synthesize)
