"""The shape of a decoder-only transformer: its parameters and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer that decide its cost.

    Attributes:
        kv_heads: key and value heads; fewer than `heads` under grouped-query attention.
        ffn: width of the feed-forward layer.
        seq: tokens per sequence.
        gated: the feed-forward layer has a gate (SwiGLU), a third matrix.
        tied: the head shares the embedding's weights.
        positions: learned position embeddings, 0 for rotary ones.
        vectors: of `hidden` numbers in a layer, norms' weights and all biases; None: the 2 of a
            gated layer, else the 13 of GPT's [Narayanan 2021].
        last: parameters behind the last layer beside the head's weights: of a norm, of biases.
        adapters: inputs and outputs of the low-rank products beside the maps of a layer.
        frozen_layer: share of the layers' parameters that are not trained.
        frozen_embedding, frozen_head: these are not.
        still: share of the layers, the first ones, that no backward goes through.
        averaged: a moving average of what is trained is kept.
        masked: attention stays within documents, by a mask of s x s where the layout needs one.
        dropout: what is added to the stream is dropped in part.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    gated: bool = False
    tied: bool = True
    positions: int = 0
    vectors: int | None = None
    last: int = 0
    name: str = ""
    adapters: tuple[tuple[int, int], ...] = ()
    frozen_layer: float = 0.0
    frozen_embedding: bool = False
    frozen_head: bool = False
    still: float = 0.0
    averaged: bool = False
    masked: bool = False
    dropout: bool = False

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.hidden * self.kv_heads // self.heads

    @property
    def maps(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear maps of a layer, by the recipe's names for them."""
        h, kv = self.hidden, self.kv_width
        found = {"query": (h, h), "key": (h, kv), "value": (h, kv), "output": (h, h)}
        found = {f"attention.{name}": widths for name, widths in found.items()}
        if self.gated:
            found["feed_forward.gate"] = (h, self.ffn)
        return {**found, "feed_forward.up": (h, self.ffn), "feed_forward.down": (self.ffn, h)}

    @property
    def attention_weights(self) -> int:
        """Weights of the four projections of one layer: h²(2 + 2 kv/a)."""
        return 2 * self.hidden * (self.hidden + self.kv_width)

    @property
    def ffn_weights(self) -> int:
        """Weights of the feed-forward matrices of one layer: 2hf, or 3hf with a gate."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: its matrices, norms and biases."""
        usual = 2 if self.gated else 13
        vectors = usual if self.vectors is None else self.vectors
        return self.attention_weights + self.ffn_weights + vectors * self.hidden

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the low-rank adapters of one layer."""
        return sum(inputs * outputs for inputs, outputs in self.adapters)

    @property
    def embedding_parameters(self) -> int:
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer, 0 where it shares the embedding's."""
        return 0 if self.tied else self.vocab * self.hidden

    def parameters(self) -> int:
        """Return the number of parameters."""
        ends = self.embedding_parameters + self.head_parameters
        return self.layers * self.layer_parameters + ends + self.last

    def matmul_parameters(self) -> int:
        """Return the parameters that every token is multiplied with, the head included."""
        layer = self.attention_weights + self.ffn_weights
        return self.layers * layer + self.vocab * self.hidden

    def attention_flops(self, causal: bool = False) -> float:
        """Return the FLOPs per token of QKᵀ and AV in one layer's forward: 4hs, causal 2hs."""
        return (2.0 if causal else 4.0) * self.hidden * self.seq

    def forward_flops(self, causal: bool = False) -> float:
        """Return the FLOPs per token of a forward: 2N + 4Lhs [Narayanan 2021; PaLM App. B]."""
        return 2.0 * self.matmul_parameters() + self.layers * self.attention_flops(causal)

    def train_flops(self, causal: bool = False) -> float:
        """Return the FLOPs per token of forward and backward, without recomputation: 3 forwards."""
        return 3.0 * self.forward_flops(causal)
