"""Section `data`: where tokens come from, what is mixed with what, and what is held out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from holdfast.config.problems import Problem
from holdfast.config.section import Real, Section, Whole

if TYPE_CHECKING:
    from holdfast.config.schema import RunConfig


class MixturePart(Section):
    """One part of a mixture."""

    path: Annotated[str, Field(min_length=1)]
    """A prepared folder, a text file, or a folder of text files; a relative path starts at the shared storage."""
    weight: Annotated[Real, Field(gt=0)]
    """Its share of the samples, relative to the other parts' weights."""


PREPARE_MEMORY_MIB, PREPARE_MEMORY_PER_WORKER_MIB = 1024, 1536
"""Of a preparation's first process, and of each of its workers: transformers takes 0.5 GiB, a batch with its tokens
less than that."""


class Preparation(Section):
    """A set of tokens that a Kubernetes Job makes before training, as `holdfast data prepare` does."""

    source: Annotated[str, Field(min_length=1)]
    """What to read: a path on the shared storage, or the name of a Hugging Face data set like allenai/c4."""
    to: Annotated[str, Field(min_length=1)]
    """Folder on the shared storage that becomes the prepared folder. data.path or data.mixture names it too."""
    files: str | None = None
    """Of a data set on the hub: only files whose path matches this pattern, like en/c4-train.*.json.gz."""
    revision: str | None = None
    """Of a data set on the hub: a commit, tag or branch. Null: the newest commit, which is then written down."""
    text_key: Annotated[str, Field(min_length=1)] = "text"
    """Key of the text in JSON lines, and name of its column in parquet files."""
    workers: Annotated[Whole, Field(ge=1, le=256)] = 2
    """Processes, and cores that the pod asks for of a system node (aws.system_instance_type)."""


class Data(Section):
    """Where tokens come from. The order of samples is a pure function of (seed, step)."""

    path: tuple[str, ...] = ()
    """Prepared folders, or text files and folders of them; relative paths start at the shared storage. Empty, without a
    mixture: the interpreter's own standard-library source, which is always there."""
    mixture: tuple[MixturePart, ...] = ()
    """Parts with weights, instead of data.path. A part that is used up begins its next epoch."""
    tokenizer: str = "bytes"
    """`bytes` (256 tokens), or the name or folder of a Hugging Face tokenizer."""
    sequence_length: Annotated[Whole, Field(ge=2)] = 64
    """Tokens per sample."""
    limit_mib: Annotated[Real, Field(gt=0)] | None = None
    """Read at most so much text, of each part of a mixture. Null reads everything."""
    document_masks: bool = False
    """Attention does not cross from one document of a sample into the next."""
    validation_fraction: Annotated[Real, Field(ge=0, le=0.5)] = 0.0
    """Part of the samples, at the end of each part, that is never trained on."""
    validation_path: tuple[str, ...] = ()
    """Like data.path, for validation only. Instead of data.validation_fraction."""
    token_secret: Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")] = "hf-token"
    """Name of the Kubernetes Secret whose key `token` holds a Hugging Face token. Only the Jobs of data.prepare read
    it, and it need not exist. The token itself stands in no config."""
    prepare: tuple[Preparation, ...] = ()
    """Sets of tokens that Jobs beside the training job make: manifests in a folder of their own."""


def data_problems(c: RunConfig) -> Iterator[Problem]:
    """Problems between fields of the section, and between them and the rest."""
    data, every = c.data, c.training.evaluate_every_steps
    if data.mixture and data.path:
        why = f"data.path={list(data.path)} names the data already"
        yield Problem("data.mixture", [part.path for part in data.mixture], why, "leave data.path or it out")
    if data.validation_fraction and data.validation_path:
        why = f"data.validation_path={list(data.validation_path)} is the validation data"
        yield Problem("data.validation_fraction", data.validation_fraction, why, "use 0, or leave the path out")
    if every is not None and not (data.validation_fraction or data.validation_path):
        why = f"nothing is held out: data.validation_fraction={data.validation_fraction}, data.validation_path=[]"
        yield Problem("training.evaluate_every_steps", every, why, "use null, or hold out data")
    yield from _same_target(c)


def _same_target(c: RunConfig) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for number, preparation in enumerate(c.data.prepare):
        first = seen.setdefault(preparation.to.rstrip("/"), number)
        if first != number:
            why = f"data.prepare.{first}.to is the same folder"
            yield Problem(f"data.prepare.{number}.to", preparation.to, why, "give each a folder of its own")
