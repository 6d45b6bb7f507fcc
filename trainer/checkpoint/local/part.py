"""What a local save is called and what a part says about itself. A part's record also travels over the network."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint_folder import BLOCK_BYTES
from holdfast.config import names

SCHEMA = 1
_SAVE_FOLDER = re.compile(r"step-(\d{8,12})\.(g\d{1,9}-c\d{1,9}-r\d{1,9})-s(\d{1,12})")


@dataclass(frozen=True, order=True)
class Save:
    """One local save of all ranks. serial counts the local saves of the attempt and is the same on all ranks."""

    step: int
    attempt: str
    serial: int

    @property
    def folder(self) -> str:
        """Name of its folder on every node."""
        return f"{names.step_folder(self.step)}.{self.attempt}-s{self.serial}"

    @classmethod
    def of_folder(cls, name: str) -> Save | None:
        """The save that a folder name stands for, or None."""
        match = _SAVE_FOLDER.fullmatch(name)
        return cls(int(match[1]), match[2], int(match[3])) if match else None


@dataclass(frozen=True)
class Part:
    """What a rank saved. rank: who saved it, not who holds it. xxh3: one checksum per block of the bytes."""

    save: Save
    rank: int
    world_size: int
    layout_hash: str
    bytes: int
    xxh3: tuple[str, ...] = ()
    block_bytes: int = BLOCK_BYTES

    def record(self) -> dict[str, Any]:
        """As it is stored and sent."""
        return {"schema": SCHEMA, **asdict(self.save), **{k: v for k, v in asdict(self).items() if k != "save"}}

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> Part | None:
        """The part in a JSON object; None if it is not one of this schema, or contradicts itself."""
        try:
            if record is None or record["schema"] != SCHEMA:
                return None
            numbers = {key: int(record[key]) for key in ("rank", "world_size", "bytes", "block_bytes")}
            save = Save(int(record["step"]), str(record["attempt"]), int(record["serial"]))
            part = cls(save, layout_hash=str(record["layout_hash"]), xxh3=tuple(map(str, record["xxh3"])), **numbers)
        except (KeyError, TypeError, ValueError):
            return None
        return part if part._makes_sense() else None

    def _makes_sense(self) -> bool:
        """Also a defence: a record comes over the network, and a path is made of it."""
        return (
            Save.of_folder(self.save.folder) == self.save
            and 0 <= self.rank < self.world_size
            and self.bytes >= 0
            and 0 < self.block_bytes <= 1 << 30
            and len(self.xxh3) == -(-self.bytes // self.block_bytes)
        )

    @property
    def data_name(self) -> str:
        """File name of the bytes in the save's folder."""
        return f"rank-{self.rank}.bin"

    @property
    def record_name(self) -> str:
        """File name of the record beside them."""
        return f"rank-{self.rank}.json"


def layout_hash(layout: dict[str, Any]) -> str:
    """Identity of a layout. Equal for two ranks only if bytes of one mean the same to the other."""
    return hashlib.sha256(json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]
