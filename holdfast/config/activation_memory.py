"""What one transformer block keeps between forward and backward, in bytes per token, counted from the operations of
transformers' own modules: what torch's autograd saves for each.

Counted for attention as a GPU computes it: flash attention (or cuDNN's, or the memory-efficient one for masks) keeps
query, key, value, its output and one float32 logarithm per head, never a matrix of length times length. All of it is
compared with torch's memory tracker in tests/trainer/test_memory_prediction.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.schema import RunConfig

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4


@dataclass(frozen=True)
class Block:
    """Sizes of one block and how it is computed. element: bytes of a number of the compute type; kv: width of keys and
    of values; masked: attention has a mask of document borders; length: of a sample, in tokens."""

    gpt2: bool
    hidden: int
    intermediate: int
    heads: int
    kv: int
    length: int
    element: int
    policy: str
    compiled: bool
    masked: bool
    dropout: bool

    @classmethod
    def of(cls, config: RunConfig) -> Block:
        """The blocks of a config's model."""
        model = config.model
        return cls(
            gpt2=model.family == "gpt2",
            hidden=model.hidden_size,
            intermediate=model.intermediate_size,
            heads=model.heads,
            kv=model.hidden_size // model.heads * model.kv_heads,
            length=config.data.sequence_length,
            element=ELEMENT_BYTES[model.dtype],
            policy=config.training.activation_checkpointing,
            compiled=config.training.compile,
            masked=config.data.document_masks,
            dropout=model.dropout > 0,
        )

    @property
    def input(self) -> int:
        """The residual stream at its entry."""
        return self.element * self.hidden

    @property
    def saved(self) -> int:
        """All that backward needs, if nothing is computed again; what `selective` and `full` restore of one block."""
        return self._saved_compiled if self.compiled else self.norms + self._attention + self._feed_forward

    @property
    def kept(self) -> int:
        """What stays from forward to backward under the policy."""
        if self.policy == "full":
            return self.input
        return self._kept_selective if self.policy == "selective" else self.saved

    @property
    def left_over(self) -> int:
        """What lies beside `saved` while backward is in a block that was computed again: its input, unless the first
        norm keeps just that; with selective also the last product, which is kept but which nothing needs."""
        if self.policy == "none":
            return 0
        beside = 0 if self.gpt2 or self.element == FLOAT32 else self.input
        return beside + (self.input if self.policy == "selective" and not self.compiled else 0)

    @property
    def gradients(self) -> int:
        """Of activations, at the worst moment of backward in a block: between the products of the feed-forward layer.
        That of its output, which the residual stream needs too, and three as wide as the layer, where one activation
        as wide has gone."""
        return self.input + 2 * self.element * self.intermediate

    @property
    def gradients_at_end(self) -> int:
        """The same when backward comes out of a block: its first norm, with the gradients of its output."""
        return self.norms // 2 + 3 * self.input

    @property
    def norms(self) -> int:
        """Two norms. RMSNorm computes in float32: a copy of its input, the same divided by its size, and its output.
        LayerNorm keeps input and output."""
        if self.gpt2:
            return 2 * 2 * (self.input + FLOAT32)
        return 2 * (FLOAT32 * self.hidden + 2 * self.input + FLOAT32)

    @property
    def mask(self) -> int:
        """Which token sees which, as numbers of the compute type: torch makes them anew in every block."""
        return self.element * self.length if self.masked else 0

    @property
    def _keys(self) -> int:
        """Keys and values as attention takes them. With a mask, transformers repeats them for each query head."""
        return 2 * self.element * (self.hidden if self.masked else self.kv)

    @property
    def _attention_output(self) -> int:
        return self.input + FLOAT32 * self.heads

    @property
    def _attention(self) -> int:
        """Query, keys, values, output; of GPT-2 also which numbers dropout took out, after it and the last layer."""
        dropped = 2 * self.hidden if self.gpt2 and self.dropout else 0
        return self.input + self._keys + self._attention_output + self.mask + dropped

    @property
    def _feed_forward(self) -> int:
        """Llama: gate, its activation, up, their product. GPT-2 computes its activation in five steps."""
        return (5 if self.gpt2 else 4) * self.element * self.intermediate

    @property
    def _kept_selective(self) -> int:
        """The block's input, outputs of its matrix products and of attention (trainer/blocks.py)."""
        e, into = self.element, 1 if self.gpt2 else 2
        products = self.input + 2 * e * self.kv + into * e * self.intermediate
        if not self.compiled:
            products += self.input  # of the last product, which backward does not need
        return self.input + products + self.input + self._attention_output

    @property
    def _saved_compiled(self) -> int:
        """What torch's partitioner keeps: inputs of products, and of the norms what is not cheap to compute again."""
        wide = 2 if self.gpt2 else 3
        attention = self.input + self._keys + self._attention_output + self.mask
        return 4 * self.input + attention + wide * self.element * self.intermediate + 2 * FLOAT32
