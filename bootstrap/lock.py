"""`make lock`: trainer/requirements.lock, what the training image installs, from the trainer part of requirements.txt.

Resolves for the image (Python 3.12, Linux x86_64, glibc 2.39) on whatever machine this is, reads package metadata only,
and gives every file its hash. torch is the CUDA build there.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

UV = "uv==0.13.9"
"""The resolver. Used here only; it lives in .cache and is no part of what Holdfast needs."""
HEADER = """\
# What the training image installs. Compiled by `make lock` from the trainer part of requirements.txt for Python 3.12 on
# Linux x86_64 with glibc 2.39. Do not edit.
"""


def trainer_part(requirements: str) -> str:
    """The lines between the two "trainer" marks. Raises ValueError if a mark is missing."""
    found = re.search(r"^# --- trainer ---$(.*?)^# --- end trainer ---$", requirements, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError("requirements.txt lacks the lines `# --- trainer ---` and `# --- end trainer ---`")
    return found.group(1)


def resolver(cache: Path) -> Path:
    """Path of the pinned uv, installed on first use."""
    home = cache / UV.replace("==", "-")
    uv = home / "bin" / "uv"
    if not uv.exists():
        venv.create(str(home), with_pip=True)
        subprocess.check_call([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", UV])
    return uv


def compile_lock(root: Path) -> str:
    """The text of the lock. Raises CalledProcessError if the pins contradict each other."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "requirements.txt", Path(folder) / "lock"
        source.write_text(trainer_part((root / "requirements.txt").read_text()))
        options = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39", "--only-binary", ":all:"]
        options += ["--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        uv = str(resolver(root / ".cache"))
        subprocess.check_call([uv, "pip", "compile", *options, "requirements.txt", "-o", str(result)], cwd=folder)
        return HEADER + result.read_text()


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    text = compile_lock(root)
    target = root / "trainer" / "requirements.lock"
    draft = target.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(target)
    print(f"lock: {len(re.findall('^[a-z].*==', text, re.MULTILINE))} packages in {target.relative_to(root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
