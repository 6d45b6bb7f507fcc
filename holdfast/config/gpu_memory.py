"""Peak GPU memory of one rank in a training step, in closed form: what is allocated at each moment that may be the
worst one, part by part.

Modelled is what trainer/ does: FSDP2 over all ranks with one unit per block, one each for untied tables of embeddings
and output layer, and one for the rest (with a table that is both); float32 shards of weights, gradients and moments,
gathered weights of the compute type, gradients reduced in float32.
Not modelled, and covered by `reserve_bytes`: what other than torch's tensors takes memory, and fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.activation_memory import FLOAT32, Block
from holdfast.config.instances import CATALOG
from holdfast.config.model import OTHER
from holdfast.config.problems import Problem
from holdfast.config.schema import Model, RunConfig
from holdfast.config.sizing import ADAM_BYTES, GIB, MASTER_BYTES, outside_of_blocks, parameters

CONTEXT_GIB = 1.5
"""Beside torch's allocator: the CUDA context with the kernels that a step loads (about 0.5 GiB on an H100) and NCCL's
buffers. And, in it, the workspaces of matrix products."""
FRAGMENTS = 0.05
"""Of the tensors: what the allocator has reserved and cannot use. Small, since the pods set expandable segments
(holdfast/launch.py); larger for fixed ones. Where there is room it takes more, 6 to 24 % on one H200
(bench/results/h200x1/memory.json), since each stream of FSDP's has memory of its own; where there is none it gives some
back and takes it again in every step, which costs time."""
LOSS_BYTES = 3 * FLOAT32
"""Per token and word of the vocabulary at the worst moment of a whole loss, in float32 whatever the model computes in:
logarithms of probabilities, their gradient, and that of the logits."""


@dataclass(frozen=True)
class Peak:
    """Bytes at one moment. parts: name -> bytes, all that torch has allocated then."""

    moment: str
    parts: dict[str, int]

    @property
    def bytes(self) -> int:
        """All parts."""
        return sum(self.parts.values())

    @property
    def gib(self) -> float:
        """The same in GiB."""
        return self.bytes / GIB

    def __str__(self) -> str:
        """The parts, the largest first; what is below 0.05 GiB is left out."""
        by_size = sorted(self.parts.items(), key=lambda part: -part[1])
        shown = [f"{name} {size / GIB:.1f}" for name, size in by_size if size >= 0.05 * GIB]
        return f"{self.gib:.1f} GiB {self.moment}" + (f": {', '.join(shown)}" if shown else "")


def peak(config: RunConfig, ranks: int | None = None) -> Peak | None:
    """The worst moment of a step on one of so many ranks; by default the fewest that the job goes on with, whose shards
    are the largest. None for a model that there is no formula for."""
    if config.model.family == OTHER:
        return None
    step = _Step(config, ranks or config.min_nodes * config.cluster.ranks_per_node)
    return max(step.moments(), key=lambda moment: moment.bytes)


def needed_bytes(found: Peak) -> int:
    """What a GPU must have for this peak, with all that is not modelled."""
    return found.bytes + reserve_bytes(found)


def reserve_bytes(found: Peak) -> int:
    """What is not modelled: context and communication, and fragments in proportion to the tensors."""
    return int(CONTEXT_GIB * GIB + FRAGMENTS * found.bytes)


def problem(config: RunConfig, gpu_bytes: float, gpu: str, ranks: int | None = None) -> Problem | None:
    """What is wrong if a step does not fit into a GPU with so many bytes. gpu: how to call it, with its key if it has
    one. ranks: as in `peak`."""
    found = peak(config, ranks)
    if found is None or needed_bytes(found) <= gpu_bytes:
        return None
    t, c = config.training, config.cluster
    rests_on = (
        f"data.sequence_length={config.data.sequence_length}",
        f"training.activation_checkpointing={t.activation_checkpointing}",
        f"training.loss_chunk_tokens={t.loss_chunk_tokens}",
        f"recovery.min_nodes={config.min_nodes}" if config.elastic else f"cluster.nodes={c.nodes}",
        f"cluster.ranks_per_node={c.ranks_per_node}",
    )
    why = (
        f"a rank would need {found}; and {reserve_bytes(found) / GIB:.1f} for what is not modelled. {gpu} has "
        f"{gpu_bytes / GIB:.1f} GiB ({', '.join(rests_on)})"
    )
    return Problem("training.micro_batch_size", t.micro_batch_size, why, _remedy(config))


def of_instance_type(config: RunConfig) -> Problem | None:
    """What is wrong if a step does not fit into the GPUs of the instance type, where their memory is known."""
    instance = CATALOG.get(config.cluster.instance_type)
    if instance is None or not instance.gpu_memory_gib or config.device != "cuda":
        return None
    return problem(config, instance.gpu_memory_gib * GIB, f"Each GPU of cluster.instance_type={instance.name}")


def gpu_memory_problems(config: RunConfig) -> Iterator[Problem]:
    """The same, unless a reason is given to try it."""
    found = of_instance_type(config)
    if found is not None and not config.training.accept_gpu_memory:
        yield found


def _remedy(config: RunConfig) -> str:
    """What would make the peak smaller, by the config's own keys."""
    t, ways = config.training, []
    if t.micro_batch_size > 1:
        ways.append("less (the global batch stays the same)")
    if t.activation_checkpointing != "full":
        ways.append("training.activation_checkpointing: full")
    if t.reduce_gradients == "last_pass":
        ways.append("training.reduce_gradients: each_pass")
    if t.loss_chunk_tokens is None:
        ways.append("training.loss_chunk_tokens: 2048")
    ways.append("more GPUs, or larger ones")
    return f"use {', or '.join(ways)}; or give a reason to try it in training.accept_gpu_memory"


def block_parameters(model: Model) -> int:
    """Parameters of one block: of all there are, what is outside of blocks apart."""
    return (parameters(model) - outside_of_blocks(model)) // model.layers


class _Step:
    """One step of one rank. Gradients of earlier passes lie there while a later pass accumulates."""

    def __init__(self, config: RunConfig, ranks: int) -> None:
        model, training = config.model, config.training
        self._ranks = ranks
        self._layers = model.layers
        self._weights = block_parameters(model)
        """Parameters of a block."""
        self._rest = parameters(model) - self._layers * self._weights
        """Parameters outside of blocks."""
        self._block = Block.of(config)
        self._tokens = training.micro_batch_size * config.data.sequence_length
        self._chunk = min(training.loss_chunk_tokens or self._tokens, self._tokens)
        self._vocabulary = model.vocab_size
        self._head = model.vocab_size * model.hidden_size
        self._untied = not model.tie_embeddings
        self._whole = self._rest - (2 * self._head if self._untied else 0)
        """Parameters in the unit of the whole."""
        self._width = model.intermediate_size * model.hidden_size
        self._reduces_last = training.reduce_gradients == "last_pass"
        self._accumulates = training.global_batch_size // (ranks * training.micro_batch_size) > 1

    def moments(self) -> list[Peak]:
        """All that may be the worst."""
        last = self._layers - 1
        inner = {last, max(0, last - 1), 0}
        blocks = [moment for index in sorted(inner) for moment in (self._in_block(index), self._end_of_block(index))]
        return [self._in_loss(), *blocks, self._in_embedding(), self._in_last_reduction()]

    def _moment(self, name: str, reduced: int, **parts: int) -> Peak:
        """reduced: parameters whose gradients of this pass have been reduced to shards."""
        all_of_them = self._layers * self._weights + self._rest
        in_shards = all_of_them if self._accumulates and not self._reduces_last else reduced
        state = {
            "weights and moments": all_of_them * (MASTER_BYTES + ADAM_BYTES) // self._ranks,
            "gradients": in_shards * FLOAT32 // self._ranks,
        }
        if self._accumulates and self._reduces_last:
            state["gradients of earlier passes"] = (all_of_them - reduced) * FLOAT32
        return Peak(name, state | parts)

    def _gathered(self, index: int) -> int:
        """Weights of the compute type: those of the unit of the whole stay gathered over the whole pass; those of the
        block `index` are there while it computes, and those of the block before it arrive meanwhile, where there is
        anybody to send them."""
        arrives = index > 0 and self._ranks > 1
        return self._block.element * (self._whole + (1 + arrives) * self._weights)

    def _gathered_at_loss(self) -> int:
        """The same at the loss, where an untied output layer is gathered. In pieces the worst moment is in forward:
        the buffer in which the last unit came is kept until others are gathered. Else it is in backward, and the last
        block arrives."""
        buffer = self._head if self._untied and self._chunk < self._tokens else self._weights
        return self._block.element * (self._rest - self._head * self._untied + buffer * (self._ranks > 1))

    def _reduction(self, index: int) -> int:
        """Float32 gradients of the unit behind, until they have been reduced."""
        if index < self._layers - 1:
            return FLOAT32 * self._weights
        return FLOAT32 * self._head if self._untied else 0

    def _reduced(self, index: int) -> int:
        """Parameters behind the block `index`, whose gradients have been reduced."""
        return (self._layers - 1 - index) * self._weights + (self._head if self._untied else 0)

    def _waiting(self) -> int:
        """Gradient of the one table that is also the input embeddings, until they have theirs."""
        return 0 if self._untied else self._block.element * self._head

    def _kept(self, blocks: int) -> int:
        bits = self._tokens * self._block.length if self._block.masked and self._block.policy != "none" else 0
        return blocks * self._tokens * self._block.kept + bits

    def _in_loss(self) -> Peak:
        """Backward through the loss; in pieces, a piece, whose gradients are computed beside it."""
        e, block = self._block.element, self._block
        if self._chunk < self._tokens:
            # Of a piece the logits, the same in float32 (which a GPU may do without), and logarithms of probabilities;
            # of all pieces the gradients of hidden states and, in float32, of the weight, beside one piece's.
            converted = FLOAT32 if e < FLOAT32 else 0
            piece = (e + converted + FLOAT32) * self._chunk * self._vocabulary
            product = e * self._head + (FLOAT32 if e == FLOAT32 else e) * self._chunk * self._vocabulary
            loss = max(piece, product) + FLOAT32 * self._head + self._tokens * block.input
        else:
            softmax = LOSS_BYTES * self._chunk * self._vocabulary
            loss = max(softmax, e * (self._chunk * self._vocabulary + self._head))  # gradients of logits and weight
        return self._moment(
            "in the loss",
            0,
            **{
                "gathered weights": self._gathered_at_loss(),
                "activations": self._kept(self._layers) + self._tokens * block.norms // 2,
                "logits and loss": loss,
            },
        )

    def _in_block(self, index: int) -> Peak:
        block = self._block
        working = block.saved + block.left_over + block.gradients
        extra = block.mask if block.policy != "none" else 0
        return self._moment(
            "in backward",
            self._reduced(index),
            **{
                "gathered weights": self._gathered(index),
                "activations": self._kept(index),
                "one block": self._tokens * (working + extra) + block.element * self._width,
                "reduction": self._reduction(index),
                "output layer's gradient": self._waiting(),
            },
        )

    def _end_of_block(self, index: int) -> Peak:
        block = self._block
        return self._moment(
            "in backward",
            self._reduced(index),
            **{
                "gathered weights": self._gathered(index),
                "activations": self._kept(index),
                "one block": self._tokens * block.gradients_at_end + block.element * self._weights,
                "reduction": self._reduction(index),
                "output layer's gradient": self._waiting(),
            },
        )

    def _in_embedding(self) -> Peak:
        """The gradient of the table of input embeddings, dense; beside that of the output layer if it is the same."""
        e = self._block.element
        own = self._head + self._whole if self._untied else max(self._rest, 2 * self._head)
        return self._moment(
            "at the end of backward",
            self._reduced(-1),
            **{
                "gathered weights": e * self._whole,
                "gradients outside of blocks": e * own,
                "reduction": FLOAT32 * self._weights,
            },
        )

    def _in_last_reduction(self) -> Peak:
        """Of the table of input embeddings and what is in one unit with it. FSDP lets go of the gradients before it
        makes room for the result."""
        count = self._head if self._untied else self._rest
        return self._moment(
            "at the end of backward",
            self._reduced(-1),
            reduction=FLOAT32 * count + max(self._block.element * count, FLOAT32 * count // self._ranks),
        )
