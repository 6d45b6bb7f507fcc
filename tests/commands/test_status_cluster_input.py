"""What `holdfast status` says to standard input that is no state of a cluster."""

from __future__ import annotations

import io
import os
import pty
import sys

import pytest

from holdfast import cli
from holdfast.commands.status_cluster import main
from holdfast.config import ConfigError


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ("NAME READY STATUS", "it is not JSON"),
        ('{"items": [', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is no Kubernetes object"),
        ('{"items": {}}', "its items are no list"),
        ('{"items": [3]}', "items.0 is no Kubernetes object"),
        ('{"items": [{"kind": "Pod"}]}', "items.0 is no Kubernetes object"),
        ('{"apiVersion": "v1", "kind": "List", "items": []}', "it holds nothing"),
        ('{"kind": "Pod", "metadata": {"name": "a"}}', "it holds Pod, and no JobSet of Holdfast"),
        ('{"kind": "JobSet", "metadata": {"name": "a"}}', "it holds JobSet, and no JobSet of Holdfast"),
    ],
)
def test_what_is_no_cluster_state_is_refused_in_one_message(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        main(io.StringIO(text))
    (problem,) = refusal.value.problems
    assert problem.why.startswith(why)


def given(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{}"])
def test_the_command_refuses_with_code_2_and_one_message(
    content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, content)
    assert cli.main(["status"]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("no cluster state: 1 problem\n")


def test_on_a_terminal_it_does_not_wait_for_somebody_to_type_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert cli.main(["status"]) == 2
    os.close(ours)
    assert "nothing is piped in" in capsys.readouterr().err
