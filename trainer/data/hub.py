"""The Hugging Face hub: what its failures mean for the person who has to mend them, and never its token in a text."""

from __future__ import annotations

import os
import socket

from holdfast.config import Problem

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where huggingface_hub finds the token; on a cluster a Secret fills the first (docs/data.md)."""


_BUSY = (408, 429)
"""HTTP status of requests that are to be sent again later."""


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


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later: the network, or a hub that is overloaded or broken for a while."""
    from huggingface_hub import errors

    lasting = (
        errors.GatedRepoError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.OfflineModeIsEnabled,
    )
    causes = _causes(error)
    if any(isinstance(one, lasting) for one in causes):
        return False
    return is_unreachable(error) or any(_status(one) in _BUSY or _status(one) >= 500 for one in causes)


def http_status(error: BaseException) -> int:
    """Of the answer that the error, or what caused it, tells of; 0: of none."""
    return next((status for status in map(_status, _causes(error)) if status), 0)


def _status(error: BaseException) -> int:
    """Of the HTTP answer that the error tells of; 0: of none."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status if isinstance(status, int) else 0


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
