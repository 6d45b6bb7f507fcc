"""Bytes -> text, with the place of what is not UTF-8: replaced characters would be trained on and never noticed."""

from __future__ import annotations

import codecs

from holdfast.config import ConfigError, Problem


class Utf8:
    """Decodes one text piece by piece. what: its file, for people; key: what in the config or call names it."""

    def __init__(self, what: str, key: str, *, packed: bool = False) -> None:
        """packed: offsets count in what was uncompressed."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._what, self._key, self._packed = what, key, packed
        self._seen = 0

    def decode(self, chunk: bytes, *, final: bool = False) -> str:
        """The text of the chunk, as far as its characters are complete. final: the text ends with it.

        Raises ConfigError with file and byte offset for bytes that are not UTF-8, and for NUL.
        """
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            raise not_utf8(self._what, self._key, self._seen - pending + error.start, packed=self._packed) from None
        if "\0" in text:
            why = "it contains NUL bytes, so it is not text"
            raise ConfigError([Problem(self._key, self._what, why, "name text files only")], "data")
        self._seen += len(chunk)
        return text


def not_utf8(what: str, key: str, offset: int, *, packed: bool = False) -> ConfigError:
    """The refusal of a file whose byte `offset` (from 0) does not belong to UTF-8 text."""
    where = f"byte {offset} of what it holds uncompressed" if packed else f"byte {offset}"
    fix = "convert it (iconv -f LATIN1 -t UTF-8), or leave it out"
    return ConfigError([Problem(key, what, f"it is not UTF-8 text: see {where}", fix)], "data")
