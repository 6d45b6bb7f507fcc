"""Whether what is left to make fits on the disk, before hours are spent on it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.config import Problem
from trainer.data.prepare.failures import WorkFailed
from trainer.data.prepare.pieces import Piece
from trainer.data.prepare.records import read
from trainer.data.tokenizer import Tokenizer, token_type

SAMPLES = 3
"""Pieces that are looked into."""
SAMPLE_CHARACTERS = 1 << 18
"""Text of each that is tokenized for the estimate."""
PACKED_CHARACTERS = 1 << 23
"""Text of each packed one that is read for it. Decompressors read ahead, up to 128 KiB of what is stored: of 256 KiB of
text that would be more than all that became of it."""
MARGIN = 1.1


def check(pieces: Sequence[Piece], out: Path, encoder: Tokenizer, text_key: str) -> int:
    """Bytes that the pieces will take, estimated from a sample. Raises WorkFailed if they do not fit: others may
    make room, on a shared file system without being asked."""
    needed = estimate(pieces, encoder, text_key)
    free = shutil.disk_usage(out).free
    if needed > free:
        why = (
            f"about {needed / 2**30:.3g} GiB will be written (estimated from a sample of the text), and "
            f"{free / 2**30:.3g} GiB are free there"
        )
        fix = "make room or name a folder on another disk; pieces that are done are kept"
        raise WorkFailed(Problem("--to", str(out), why, fix))
    return needed


def estimate(pieces: Sequence[Piece], encoder: Tokenizer, text_key: str) -> int:
    """Bytes of tokens and ends that the pieces become."""
    if not pieces:
        return 0
    chosen = sorted({0, len(pieces) // 2, len(pieces) - 1})[:SAMPLES]
    stored, made = 0, 0.0
    for number in chosen:
        sampled, bytes_made = _sample(pieces[number], encoder, text_key)
        stored += sampled
        made += bytes_made
    weight = sum(piece.weight for piece in pieces)
    return int(weight * made / max(1, stored) * MARGIN)


def _sample(piece: Piece, encoder: Tokenizer, text_key: str) -> tuple[int, float]:
    """(stored bytes that were read, bytes that become of them)."""
    size = token_type(encoder.vocabulary).itemsize
    enough = PACKED_CHARACTERS if piece.file.packing else SAMPLE_CHARACTERS
    texts: list[str] = []
    characters, kept, stored, documents = 0, 0, 0, 0
    for text in read(piece, text_key):
        if kept < SAMPLE_CHARACTERS:
            texts.append(text.text)
            kept += len(text.text)
        characters += len(text.text)
        documents += text.last
        stored = text.done
        if characters >= enough:
            break
    tokens = sum(len(ids) for ids in encoder.ids(texts)) * characters / max(1, kept) if texts else 0.0
    return stored, (tokens + documents) * size + documents * 8.0
