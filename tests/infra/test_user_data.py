"""User data of a GPU node: the MIME parts that EKS merges, and the script in it, run by bash on a pretend /proc."""

from __future__ import annotations

import email
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from holdfast.config.instances import CATALOG, Instance
from infra.user_data import huge_pages, user_data
from tests.infra.assembly import Assembly

P5 = CATALOG["p5.48xlarge"]


def parts(text: str) -> dict[str, str]:
    """Content type -> text of each part."""
    found = {}
    for part in email.message_from_string(text).walk():
        payload = part.get_payload(decode=True)
        if isinstance(payload, bytes):
            found[part.get_content_type()] = payload.decode("ascii")
    return found


def script() -> str:
    return parts(user_data(P5) or "")["text/x-shellscript"]


def test_the_node_config_makes_one_array_of_the_local_disks() -> None:
    config = yaml.safe_load(parts(user_data(P5) or "")["application/node.eks.aws"])
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    assert config["spec"] == {"instance": {"localStorage": {"strategy": "RAID0"}}}, "EKS adds the cluster itself"


def test_the_template_carries_the_document_in_base64(p5: Assembly) -> None:
    assert p5.launch_data["UserData"] == {"Fn::Base64": user_data(P5)}


def test_a_type_without_local_array_and_efa_needs_no_user_data(assemblies: dict[str, Assembly]) -> None:
    assert user_data(CATALOG["g5.8xlarge"]) is None
    assert "UserData" not in assemblies["gpt2-g5x2"].launch_data


@pytest.mark.parametrize("instance", [i for i in CATALOG.values() if i.hugepages_mib], ids=lambda i: i.name)
def test_a_node_reserves_what_its_pod_requests(instance: Instance) -> None:
    assert huge_pages(instance) * 2 >= instance.hugepages_mib
    assert f"wanted={huge_pages(instance)}\n" in (user_data(instance) or "")


def run_script(tmp_path: Path, *, there: int, kernel_gives: int) -> tuple[int, str, str]:
    """(exit code, standard error, pages afterwards) of the script on a node with `there` pages."""
    pages, etc, tools = tmp_path / "nr_hugepages", tmp_path / "sysctl.d", tmp_path / "bin"
    etc.mkdir()
    tools.mkdir()
    pages.write_text(f"{there}\n")
    sysctl = tools / "sysctl"
    sysctl.write_text(f'#!/bin/bash\ngrep -q "vm.nr_hugepages = " "${{1#--load=}}" && echo {kernel_gives} > {pages}\n')
    sysctl.chmod(0o755)
    text = script().replace("/proc/sys/vm/nr_hugepages", str(pages)).replace("/etc/sysctl.d", str(etc))
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=20, check=False
    )
    return done.returncode, done.stderr, pages.read_text().strip()


def test_the_script_reserves_missing_pages(tmp_path: Path) -> None:
    assert run_script(tmp_path, there=0, kernel_gives=2560) == (0, "", "2560")


def test_the_script_leaves_a_larger_reservation_alone(tmp_path: Path) -> None:
    assert run_script(tmp_path, there=5128, kernel_gives=2560) == (0, "", "5128")


def test_the_script_says_when_the_kernel_gave_too_few(tmp_path: Path) -> None:
    code, message, pages = run_script(tmp_path, there=0, kernel_gives=100)
    assert (code, pages) == (1, "100") and "100 huge pages" in message and "2560 wanted" in message
