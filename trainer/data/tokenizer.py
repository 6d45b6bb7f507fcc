"""Text to token ids: plain bytes, or any Hugging Face tokenizer."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from holdfast.config import ConfigError, Problem
from trainer.data.hub import hub_problem, without_token
from trainer.data.tokens import Tokens

BYTES = "bytes"
_LONGEST_LINE = 1 << 20
"""Characters of a line that are held back, so that no word is cut in two."""


class Tokenizer(Protocol):
    """`identity` changes whenever the same text would give other tokens. Every id is below `vocabulary`. `end`: the
    token that ends a document; None: there is none."""

    identity: str
    vocabulary: int
    end: int | None

    def encode(self, chunks: Iterable[bytes]) -> Iterator[Tokens]:
        """Token ids of one document with its end, in pieces, of type `token_type(vocabulary)`."""

    def ids(self, texts: Sequence[str]) -> list[Tokens]:
        """Token ids of each text, without ends."""


def token_type(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest unsigned type that holds every id."""
    return np.dtype(np.uint8 if vocabulary <= 1 << 8 else np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def load(name: str, storage: Path) -> Tokenizer:
    """`bytes`, or a Hugging Face tokenizer by folder (relative ones start at `storage`) or name. Raises ConfigError."""
    return Bytes() if name == BYTES else HuggingFace(name, storage)


class Bytes:
    """One token per byte: no vocabulary file, no text it cannot express."""

    identity = BYTES
    vocabulary = 256
    end: int | None = None

    def encode(self, chunks: Iterable[bytes]) -> Iterator[Tokens]:
        """See Tokenizer."""
        for chunk in chunks:
            yield np.frombuffer(chunk, dtype=np.uint8)

    def ids(self, texts: Sequence[str]) -> list[Tokens]:
        """See Tokenizer."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


class HuggingFace:
    """A Hugging Face tokenizer. A document ends with its end-of-sequence token, if it has one."""

    def __init__(self, name: str, storage: Path) -> None:
        self._tokenizer = _from_hugging_face(name, storage)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self.vocabulary = max(vocabulary.values()) + 1
        self.identity = f"{type(self._tokenizer).__name__}-{_rules_digest(self._tokenizer, vocabulary)}"
        self.end: int | None = self._tokenizer.eos_token_id
        self._type = token_type(self.vocabulary)

    def encode(self, chunks: Iterable[bytes]) -> Iterator[Tokens]:
        """See Tokenizer. Text is cut at line ends, so that a file of any size fits in memory."""
        for text in _lines(chunks):
            yield from self.ids([text])
        if self.end is not None:
            yield np.asarray([self.end], dtype=self._type)

    def ids(self, texts: Sequence[str]) -> list[Tokens]:
        """See Tokenizer."""
        encoded = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [np.asarray(ids, dtype=self._type) for ids in encoded["input_ids"]]


def cut_of(text: str) -> int:
    """Where to cut text that goes on: behind its last line end; anywhere in a line of more than a megabyte; else 0."""
    cut = text.rfind("\n") + 1
    return len(text) if not cut and len(text) > _LONGEST_LINE else cut


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decoded text in pieces that end at a line end, or, in lines of more than a megabyte, anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    for chunk in chunks:
        text = rest + decoder.decode(chunk)
        cut = cut_of(text)
        rest = text[cut:]
        if cut:
            yield text[:cut]
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def _from_hugging_face(name: str, storage: Path) -> Any:
    from transformers import AutoTokenizer

    folder = storage / name
    try:
        return AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
    except (OSError, ValueError, ImportError, KeyError) as error:
        problem = None if folder.is_dir() else hub_problem(error, "data.tokenizer", name)
        if problem is None:
            reason = without_token((str(error).strip().splitlines() or [type(error).__name__])[0])
            fix = "name a folder on the shared storage that holds it, a model on the Hugging Face hub, or bytes"
            problem = Problem("data.tokenizer", name, f"it cannot be loaded ({reason})", fix)
        raise ConfigError([problem], "data") from error


def _rules_digest(tokenizer: Any, vocabulary: dict[str, int]) -> str:
    """Digest of all that decides about ids, not of the name or the place it was loaded from."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if hasattr(backend, "to_str") else repr(sorted(vocabulary.items()))
    return hashlib.sha256(f"{rules}{tokenizer.eos_token_id}".encode()).hexdigest()[:32]
