"""Fills a virtual environment: pip, the NVRx wheel, byte code, the `holdfast` command."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import List, NamedTuple, Optional

from bootstrap.interpreter import NVRX, NVRX_GLIBC, Interpreter, SetupError, nvrx_way

_VERIFY = """
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pip._vendor.packaging.requirements import Requirement
for line in Path(sys.argv[1]).read_text().splitlines():
    text = line.partition("#")[0].strip()
    wanted = Requirement(text) if text else None
    if wanted is None or (wanted.marker and not wanted.marker.evaluate()):
        continue
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        found = "missing"
    if found == "missing" or not wanted.specifier.contains(found, prereleases=True):
        print(f"  {wanted.name}: {found}, wanted {wanted.specifier}")
"""

_LAUNCHER = """#!/bin/sh
# Written by `make venv`. jsii (cdk8s) starts the Node that JSII_NODE names.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
JSII_NODE="${JSII_NODE:-$here/node}"
export JSII_NODE
exec "$here/python" -m holdfast "$@"
"""


class Plan(NamedTuple):
    """What to set up, and where."""

    root: Path
    venv: Path
    python: Optional[str]
    torch_index: Optional[str]

    @property
    def requirements(self) -> Path:
        return self.root / "requirements.txt"

    @property
    def venv_python(self) -> Path:
        return self.venv / "bin" / "python"


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(argv: List[str], quiet: bool = False) -> None:
    """Run a command. SetupError with the command line if it fails."""
    # `user = true` in pip's configuration has no meaning inside a virtual environment, and pip would stop at it.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    code = subprocess.call(argv, env=environment, stdout=subprocess.DEVNULL if quiet else None)
    if code:
        raise SetupError(f"this command ended with {code}: {' '.join(map(shlex.quote, argv))}")


def pip(plan: Plan, *arguments: str) -> None:
    """The environment's own pip, with the user's pip configuration."""
    # -I: packages on the user's PYTHONPATH must not count as installed.
    run([str(plan.venv_python), "-I", "-m", "pip", *arguments])


def pinned(requirements: Path, name: str) -> str:
    """`name==version` as the requirements file pins it. SetupError if it does not."""
    found = re.search(rf"^{re.escape(name)}==[^\s;#]+", requirements.read_text(), re.MULTILINE)
    if not found:
        raise SetupError(f"{requirements} does not pin {name}")
    return found.group()


def retagged_wheels(plan: Plan, interpreter: Interpreter) -> Path:
    """Folder with the NVRx wheel under a tag that pip accepts on an older glibc. Kept for the next time."""
    folder = plan.root / ".cache" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    requirement = pinned(plan.requirements, NVRX)
    short = "{}{}".format(*interpreter.version)
    stem = requirement.replace(f"{NVRX}==", f"{NVRX.replace('-', '_')}-")
    wheel = folder / f"{stem}-cp{short}-cp{short}-linux_{interpreter.machine}.whl"
    if not zipfile.is_zipfile(str(wheel)):
        with tempfile.TemporaryDirectory(dir=str(folder)) as scratch:
            platform = "manylinux_{}_{}_{}".format(*NVRX_GLIBC, interpreter.machine)
            how = ["--quiet", "--only-binary=:all:", "--no-deps", "--platform", platform, "--python-version", short]
            pip(plan, "download", *how, "-d", scratch, requirement)
            pip(plan, "install", "--quiet", pinned(plan.requirements, "wheel"))
            (downloaded,) = Path(scratch).glob("*.whl")
            retag = ["tags", "--remove", "--platform-tag", f"linux_{interpreter.machine}", str(downloaded)]
            run([str(plan.venv_python), "-I", "-m", "wheel", *retag], quiet=True)
            (Path(scratch) / wheel.name).replace(wheel)
    return folder


def install(plan: Plan, interpreter: Interpreter, quiet: bool) -> None:
    """Bring the environment to what requirements.txt says; does little where it is there already. SetupError."""
    way, message = nvrx_way(interpreter)
    say(message)
    arguments = ["install", "-r", str(plan.requirements)]
    if quiet or not sys.stdout.isatty():
        arguments.append("--quiet")
    if way == "retag":
        arguments += ["--find-links", str(retagged_wheels(plan, interpreter))]
    if plan.torch_index:
        arguments += ["--extra-index-url", plan.torch_index]
    how_long = "what is new or changed" if quiet else "about two minutes; longer where torch brings its CUDA libraries"
    say(f"installing requirements.txt ({how_long})")
    pip(plan, *arguments)
    check = [str(plan.venv_python), "-I", "-c", _VERIFY, str(plan.requirements)]
    wrong = subprocess.check_output(check).decode().rstrip()
    if wrong:
        raise SetupError(f"pip ended well, but these are not what requirements.txt says:\n{wrong}")


def finish(plan: Plan) -> None:
    """Byte-compile once, write the `holdfast` command, and make the packages importable from any folder."""
    ask = [str(plan.venv_python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(ask).decode().strip())
    # pip compiles what it installs, other installers do not. Where PYTHONDONTWRITEBYTECODE is set, every rank would
    # then compile torch anew: 8 s instead of 4 s to import it. Some packages carry templates that do not compile: no
    # matter.
    subprocess.call([str(plan.venv_python), "-I", "-m", "compileall", "-qq", "-j", "0", str(site)])
    (site / "holdfast.pth").write_text(f"{plan.root}\n")
    launcher = plan.venv / "bin" / "holdfast"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
