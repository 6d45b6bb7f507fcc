"""From the config to token streams: prepared folders as they are, text tokenized on first use and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import ConfigError, Problem, RunConfig
from trainer.data import prepared, shard, sources, tokenizer
from trainer.data.dataset import Dataset, Part

_FORMAT = 1
"""Raise it when the same text and tokenizer would give another token file."""

_ONE_TOKENIZER = "prepare all of it with one tokenizer: data.tokenizer as it is now"


@dataclass(frozen=True)
class Place:
    """Where data comes from. key: dotted, of the config that names it; entries: as they stand there."""

    key: str
    entries: tuple[str, ...]


def open_dataset(config: RunConfig, storage: Path, cache: Path) -> Dataset:
    """The data set of a run. Tokenizes text on first use and keeps the result in `cache`, which many processes may
    share.

    storage: where relative paths start. A later call for unchanged files reads no text: which fingerprint belongs to
    files of these sizes, times and inodes is remembered. Raises ConfigError if the data cannot be used (path,
    tokenizer, vocabulary, too little text), OSError if the disk fails.
    """
    data = config.data
    places = [Place("data.path", data.path)]
    if data.mixture:
        places = [Place(f"data.mixture.{n}.path", (part.path,)) for n, part in enumerate(data.mixture)]
    parts = [_open(config, place, storage, cache) for place in places]
    validation = None
    if data.validation_path:
        validation = _open(config, Place("data.validation_path", data.validation_path), storage, cache)
    _check_one_tokenizer([*parts, validation] if validation else parts, cache)
    return Dataset(config, parts, validation)


def _open(config: RunConfig, place: Place, storage: Path, cache: Path) -> Part:
    ready = [entry for entry in place.entries if prepared.is_prepared(storage / entry)]
    if not ready:
        part = _open_text(config, place, storage, cache)
    elif len(ready) == len(place.entries):
        part = _open_prepared(config, place, storage)
    else:
        text = next(entry for entry in place.entries if entry not in ready)
        why = f"{ready[0]} is a prepared folder and {text} is not"
        fix = "prepare all of it, or make them parts of data.mixture"
        raise ConfigError([Problem(place.key, list(place.entries), why, fix)], "data")
    problems = _vocabulary_problems(config, part.vocabulary)
    if problems:
        raise ConfigError(problems, "data")
    return part


def _open_prepared(config: RunConfig, place: Place, storage: Path) -> Part:
    several = [prepared.open_prepared(storage / entry, place.key, entry) for entry in place.entries]
    for entry, one in zip(place.entries, several, strict=True):
        _check_tokenizer(config, place, entry, one, storage)
    _check_one_kind(place, several)
    fingerprint, stream = prepared.joined(several, sources.limit_bytes(config.data))
    vocabulary = max(one.vocabulary for one in several)
    return Part(place.key, list(place.entries), fingerprint, vocabulary, several[0].tokenizer["identity"], stream)


def _check_one_kind(place: Place, several: Sequence[prepared.Prepared]) -> None:
    """Refuse folders whose tokens mean different things under one tokenizer's name: it was changed in between."""
    first = several[0]
    for entry, one in zip(place.entries, several, strict=True):
        if (one.dtype, one.tokenizer["identity"]) != (first.dtype, first.tokenizer["identity"]):
            why = (
                f"{place.entries[0]} has {first.dtype} tokens of {first.tokenizer['identity']}, and {entry} has "
                f"{one.dtype} tokens of {one.tokenizer['identity']}: the same ids are other text"
            )
            raise ConfigError([Problem(place.key, list(place.entries), why, _ONE_TOKENIZER)], "data")


def _check_one_tokenizer(parts: Sequence[Part], cache: Path) -> None:
    """The same between parts of a mixture and the validation data."""
    first = parts[0]
    fix = f"{_ONE_TOKENIZER}; what was tokenized on first use is made again without {cache}"
    problems = [
        Problem(
            part.key,
            part.entries,
            f"its tokens are of {part.tokenizer}, and those of {first.key} of {first.tokenizer}: the same ids are "
            "other text",
            fix,
        )
        for part in parts
        if part.tokenizer != first.tokenizer
    ]
    if problems:
        raise ConfigError(problems, "data")


def _check_tokenizer(config: RunConfig, place: Place, entry: str, one: prepared.Prepared, storage: Path) -> None:
    """Refuse tokens of another tokenizer. The same name is believed: to load one costs each rank seconds."""
    used, asked = one.tokenizer["name"], config.data.tokenizer
    if used == asked:
        return
    why = f"{place.key} names {entry}, which was prepared with {used!r}"
    if tokenizer.BYTES not in (used, asked):
        try:
            if tokenizer.load(asked, storage).identity == one.tokenizer["identity"]:
                return
        except ConfigError as error:
            why += f", and it cannot be compared with that one: {error.problems[0].why}"
    fix = f"write data.tokenizer: {used}, or prepare the data with {asked}"
    raise ConfigError([Problem("data.tokenizer", asked, why, fix)], "data")


def _open_text(config: RunConfig, place: Place, storage: Path, cache: Path) -> Part:
    found = sources.find(place.entries, sources.limit_bytes(config.data), storage, place.key)
    note = cache / f"{_listing_key(config, found)}.known"
    known = _remembered(note)
    ready = shard.find(cache, known) if known else None
    if ready is None:
        ready = _tokenize(config, storage, cache, found)
        _remember(note, ready.fingerprint)
    return Part(place.key, list(place.entries), ready.fingerprint, ready.vocabulary, ready.tokenizer, ready.stream())


def _tokenize(config: RunConfig, storage: Path, cache: Path, found: Sequence[sources.Source]) -> shard.Shard:
    encoder = tokenizer.load(config.data.tokenizer, storage)
    problems = _vocabulary_problems(config, encoder.vocabulary)
    if problems:
        raise ConfigError(problems, "data")
    digests = [source.digest() for source in found]
    content = [_FORMAT, encoder.identity, sources.limit_bytes(config.data), digests]
    fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    # Half of the init section, so that a rank that waits in vain still has time to do the work itself.
    wait_s = config.recovery.init_section_timeout_s / 2
    return shard.make(cache, fingerprint, encoder, found, digests, wait_s)


def _vocabulary_problems(config: RunConfig, vocabulary: int) -> list[Problem]:
    if vocabulary <= config.model.vocab_size:
        return []
    why = f"data.tokenizer={config.data.tokenizer!r} has token ids up to {vocabulary - 1}"
    return [Problem("model.vocab_size", config.model.vocab_size, why, f"use at least {vocabulary}")]


def _listing_key(config: RunConfig, found: Sequence[sources.Source]) -> str:
    listing = [_FORMAT, config.data.tokenizer, sources.limit_bytes(config.data)]
    listing += [(str(source.path), source.used, source.stamp) for source in found]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]


def _remembered(note: Path) -> str | None:
    try:
        return note.read_text().strip() or None
    except FileNotFoundError:
        return None


def _remember(note: Path, fingerprint: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=note.parent, prefix=f".{note.name}.", delete=False) as own:
        own.write(fingerprint)
    os.chmod(own.name, 0o644)
    os.replace(own.name, note)
