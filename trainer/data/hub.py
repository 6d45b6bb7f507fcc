"""The Hugging Face hub: what its failures mean for the person who has to mend them, and never its token in a text."""

from __future__ import annotations

import os
import socket

from holdfast.config import Problem

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where huggingface_hub finds the token; on a cluster a Secret fills the first (docs/data.md)."""


def without_token(text: str) -> str:
    """The text with the token, should it stand in it, taken out. Everything that is printed goes through here."""
    for name in TOKEN_VARIABLES:
        token = os.environ.get(name, "").strip()
        if token:
            text = text.replace(token, "***")
    return text


def hub_problem(error: BaseException, key: str, name: str) -> Problem | None:
    """What a failure of huggingface_hub, or of a library above it, says about the repository; None for anything else.

    key: dotted key or option that names it.
    """
    from huggingface_hub import errors

    causes = _causes(error)

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(errors.GatedRepoError):
        has = "the token in HF_TOKEN may not read it" if _has_token() else "HF_TOKEN is not set"
        fix = (
            f"accept its terms at https://huggingface.co/{name} and give a token that may read it in HF_TOKEN, on a "
            "cluster by a Kubernetes Secret"
        )
        return Problem(key, name, f"it is gated, and {has}", fix)
    if caused_by(errors.RevisionNotFoundError):
        return Problem(key, name, "it has no such revision on the Hugging Face hub", "correct the revision")
    if caused_by(errors.RepositoryNotFoundError):
        why = "the Hugging Face hub has none of this name, or it is private"
        return Problem(key, name, why, "correct the name or path, or give a token that may read it in HF_TOKEN")
    if is_unreachable(error):
        why = "it is not on this machine, and the Hugging Face hub cannot be reached"
        return Problem(key, name, why, "name a folder on the shared storage that holds it, or make the hub reachable")
    if caused_by(errors.HFValidationError):
        return Problem(key, name, "it does not exist here, and it is no name of a repository", "correct the path")
    return None


def is_unreachable(error: BaseException) -> bool:
    """Whether the network, or the lack of one, is the cause."""
    from huggingface_hub import errors

    kinds = (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        ConnectionError,
        TimeoutError,
        socket.gaierror,
    )
    # By their names: which HTTP library huggingface_hub uses is its own affair.
    names = ("ConnectError", "ReadError", "RemoteProtocolError", "Timeout")
    return any(isinstance(one, kinds) or type(one).__name__.endswith(names) for one in _causes(error))


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _has_token() -> bool:
    return any(os.environ.get(name, "").strip() for name in TOKEN_VARIABLES)
