"""Finds the Python to use, and says how NVRx can be installed for it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

SUPPORTED = ((3, 12), (3, 11))
NVRX = "nvidia-resiliency-ext"
NVRX_GLIBC = (2, 39)
"""The wheel's tag is manylinux_2_39. It runs on older ones too; only its CUPTI module, which the CPU never uses, does
not load there."""
MACHINES = ("x86_64", "aarch64")

_PROBE = """
import importlib.util, json, os, platform, sys
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
lacks = [name for name in ("venv", "ensurepip", "ssl", "pip") if not importlib.util.find_spec(name)]
# In an activated environment, `python` may be the one that is about to be made again: name what it was made from.
path = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([path, list(sys.version_info[:2]), platform.system(), platform.machine(), libc, lacks]))
"""


class SetupError(Exception):
    """What is wrong, and what the user can do. Shown without a stack trace."""


class Interpreter(NamedTuple):
    """A Python that could be asked. glibc is None where there is none; lacks names missing standard modules."""

    path: str
    version: Tuple[int, int]
    system: str
    machine: str
    glibc: Optional[Tuple[int, int]]
    lacks: Tuple[str, ...]

    @property
    def complaint(self) -> str:
        """Why no environment can be made with it; empty if one can."""
        if self.version not in SUPPORTED:
            return "is version {}.{}".format(*self.version)
        missing = [name for name in self.lacks if name != "pip"]
        if missing:
            package = "python{}.{}-venv".format(*self.version)
            return f"lacks the modules {', '.join(missing)} (Debian and Ubuntu: apt install {package})"
        return ""


def probe(path: str) -> Optional[Interpreter]:
    """Ask an interpreter what it is; None if it does not run (a pyenv shim without a version, a dangling link)."""
    try:
        asked = subprocess.run(
            [path, "-I", "-c", _PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
        executable, version, system, machine, libc, lacks = json.loads(asked.stdout.decode())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"glibc (\d+)\.(\d+)", libc or "")
    glibc = (int(found.group(1)), int(found.group(2))) if found else None
    return Interpreter(executable, (version[0], version[1]), system, machine, glibc, tuple(lacks))


def candidates(search_path: str) -> List[str]:
    """Interpreters on a PATH, wanted versions first. Every match counts: the first may be a shim that does not run."""
    folders = [folder for folder in search_path.split(os.pathsep) if folder]
    names = ["python{}.{}".format(*version) for version in SUPPORTED] + ["python3", "python"]
    paths = [Path(folder) / name for name in names for folder in folders]
    found = [str(path) for path in paths if path.is_file() and os.access(str(path), os.X_OK)]
    return list(dict.fromkeys([*found, sys.executable]))


def choose(wanted: Optional[str], search_path: str) -> Interpreter:
    """The interpreter to use: `wanted`, or the first on the PATH that will do.

    Raises SetupError that lists what was looked at and what to install.
    """
    seen = []
    for path in [wanted] if wanted else candidates(search_path):
        interpreter = probe(path)
        if interpreter and not interpreter.complaint:
            return interpreter
        seen.append(f"  {path} {interpreter.complaint if interpreter else 'does not run as Python 3'}")
    raise SetupError(
        "Holdfast needs Python 3.11 or 3.12 with venv. Looked at:\n"
        + "\n".join(seen)
        + "\nInstall one (Debian and Ubuntu: apt install python3.12 python3.12-venv; Fedora: dnf install python3.12),"
        + "\nor name one: make venv PYTHON=/path/to/python3.12"
    )


def nvrx_way(interpreter: Interpreter) -> Tuple[str, str]:
    """How NVRx gets in: "native", "retag" or "none", and what to tell the user. SetupError where nothing will do."""
    if interpreter.system == "Darwin":
        return "none", f"macOS: {NVRX} has no wheel, so training does not run here. Synth, planning and checks do."
    if interpreter.system != "Linux":
        raise SetupError(f"{interpreter.system} is not supported. Use Linux; on Windows, inside WSL2.")
    if interpreter.glibc is None or interpreter.machine not in MACHINES:
        libc = "glibc" if interpreter.glibc else "a C library that is not glibc (Alpine?)"
        raise SetupError(
            f"torch and {NVRX} have wheels for Linux with glibc on {' and '.join(MACHINES)} only; "
            f"this is {interpreter.machine} with {libc}. Use such a machine or container."
        )
    have, need = "{}.{}".format(*interpreter.glibc), "{}.{}".format(*NVRX_GLIBC)
    if interpreter.glibc >= NVRX_GLIBC:
        return "native", f"{NVRX}: glibc {have}, the published wheel fits as it is"
    return "retag", f"{NVRX}: glibc {have} is older than the wheel's tag ({need}); the wheel is downloaded and retagged"
