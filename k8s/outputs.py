"""cdk-outputs.json, which `cdk deploy --outputs-file` writes: stack name -> output name -> value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config import ConfigError, Problem, names
from k8s.storage import FileSystem

DEFAULT = "cdk-outputs.json"
VARIABLE = "HOLDFAST_OUTPUTS"
_DEPLOY = f"run `cdk deploy --all --outputs-file {DEFAULT}` once more"
_PARTS = (names.STACK_NETWORK, names.STACK_CLUSTER, names.STACK_STORAGE, names.STACK_WORKLOAD, names.STACK_GPU)
_STORAGE = (names.OUTPUT_FILE_SYSTEM_ID, names.OUTPUT_FILE_SYSTEM_DNS, names.OUTPUT_FILE_SYSTEM_MOUNT)
_FORMS = {
    names.OUTPUT_FILE_SYSTEM_ID: r"fs-[0-9a-f]{8,40}",
    names.OUTPUT_FILE_SYSTEM_DNS: r"[a-z0-9][a-z0-9.-]+",
    names.OUTPUT_FILE_SYSTEM_MOUNT: r"[a-z0-9]{1,8}",
    names.OUTPUT_CAPACITY_ENDS_AT: r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
}


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a deployment says about one run. `why`: one line, where it says nothing about storage."""

    file_system: FileSystem | None = None
    image: str | None = None
    capacity_ends_at: str | None = None
    """In UTC, like 2026-12-24T11:30:00Z."""
    why: str = ""


def read(environ: Mapping[str, str], run: str) -> Outputs:
    """The outputs of the run's own stacks.

    The file is HOLDFAST_OUTPUTS, or cdk-outputs.json here. That it is missing, or of another deployment, is no error;
    a file that was named and is missing, or half of the outputs, is. Raises ConfigError.
    """
    named = environ.get(VARIABLE)
    path = Path(named or DEFAULT)
    if not named and not path.exists():
        return Outputs(why=f"there is no {DEFAULT} here; `cdk deploy --all --outputs-file {DEFAULT}` writes it")
    stacks = _stacks(path)
    ours = {name: stacks[name] for part in _PARTS if (name := names.stack_name(run, part)) in stacks}
    image = next((values[names.OUTPUT_IMAGE] for values in ours.values() if names.OUTPUT_IMAGE in values), None)
    ends_at = _capacity_end(path, names.stack_name(run, names.STACK_GPU), ours)
    stack = names.stack_name(run, names.STACK_STORAGE)
    if stack not in ours:
        why = f"{path} has no stack {stack}, only {', '.join(sorted(stacks)) or 'an empty mapping'}"
        return Outputs(image=image, capacity_ends_at=ends_at, why=why)
    return Outputs(file_system=_file_system(path, stack, ours[stack]), image=image, capacity_ends_at=ends_at)


def _stacks(path: Path) -> dict[str, dict[str, str]]:
    try:
        stacks = json.loads(path.read_text())
    except OSError as error:
        raise _refused(VARIABLE, str(path), str(error.strerror), "name a file that can be read") from None
    except ValueError as error:
        raise _refused(VARIABLE, str(path), f"it is not JSON ({error})", _DEPLOY) from None
    if not isinstance(stacks, dict) or not all(_is_stack(values) for values in stacks.values()):
        raise _refused(VARIABLE, str(path), "it is not a mapping of stacks to their outputs", _DEPLOY)
    return stacks


def _is_stack(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def _file_system(path: Path, stack: str, values: Mapping[str, str]) -> FileSystem:
    problems = []
    for key in _STORAGE:
        if key not in values:
            problems.append(Problem(f"{stack}.{key}", None, "the output is missing", _DEPLOY))
        elif not re.fullmatch(_FORMS[key], values[key]):
            problems.append(Problem(f"{stack}.{key}", values[key], f"it is not like {_FORMS[key]}", _DEPLOY))
    if problems:
        raise ConfigError(problems, source=str(path))
    identity, dns_name, mount_name = (values[key] for key in _STORAGE)
    return FileSystem(id=identity, dns_name=dns_name, mount_name=mount_name)


def _capacity_end(path: Path, stack: str, ours: Mapping[str, Mapping[str, str]]) -> str | None:
    key = names.OUTPUT_CAPACITY_ENDS_AT
    value = ours.get(stack, {}).get(key)
    if value is not None and not re.fullmatch(_FORMS[key], value):
        problem = Problem(f"{stack}.{key}", value, f"it is not like {_FORMS[key]}", _DEPLOY)
        raise ConfigError([problem], source=str(path))
    return value


def _refused(key: str, got: str, why: str, fix: str) -> ConfigError:
    return ConfigError([Problem(key, got, why, fix)], source="deployment outputs")
