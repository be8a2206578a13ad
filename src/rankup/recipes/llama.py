"""Sizes of Llama-shaped models: by name, or by Hugging Face's `config.json`. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError, nearest

CONFIG = "config.json"


@dataclass(frozen=True)
class RopeScaling:
    """Rotary positions beyond the length of pre-training.

    Attributes:
        kind: linear: all frequencies are divided by `factor` (Chen et al., 2023); llama3: the low
            ones are, with a smooth passage between the two bounds (Llama 3.1's config.json).
        length: sequence length of pre-training, for llama3.
    """

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    length: int = 8192


@dataclass(frozen=True)
class LlamaShape:
    """Size of a Llama.

    Attributes:
        vocab_size: 0 where the text's vocabulary says it.
        ffn: width inside the feed-forward.
        theta: base of the rotary frequencies.
        eps: of RMSNorm.
        tied: the head's weight is the token embedding's.
        longest: the sequence length that the model was made for.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab_size: int = 0
    theta: float = 10_000.0
    scaling: RopeScaling | None = None
    eps: float = 1e-5
    tied: bool = False
    longest: int = 8192

    def config(self) -> dict[str, Any]:
        """Return the `config.json` that transformers makes a `LlamaForCausalLM` of."""
        scaling = None
        if self.scaling is not None:
            scaling = {"rope_type": self.scaling.kind, "factor": self.scaling.factor}
            if self.scaling.kind == "llama3":
                scaling |= {
                    "low_freq_factor": self.scaling.low,
                    "high_freq_factor": self.scaling.high,
                    "original_max_position_embeddings": self.scaling.length,
                }
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.dim,
            "intermediate_size": self.ffn,
            "max_position_embeddings": self.longest,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.eps,
            "rope_scaling": scaling,
            "rope_theta": self.theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
            "vocab_size": self.vocab_size,
        }


# Those of JackFram/llama-160m and of Llama 3.2 1B, 3.2 3B and 3.1 8B, whose positions of long
# contexts are left out: a model that is trained here has the length that it is trained with.
SIZES = {
    "llama-160m": LlamaShape(12, 768, 12, 12, 3072),
    "llama-1b": LlamaShape(16, 2048, 32, 8, 8192, theta=500_000.0, tied=True),
    "llama-3b": LlamaShape(28, 3072, 24, 8, 8192, theta=500_000.0, tied=True),
    "llama-8b": LlamaShape(32, 4096, 32, 8, 14336, theta=500_000.0),
}


def shape_of(model: str) -> LlamaShape:
    """Return the sizes that a name, a `config.json` or the folder of one stands for.

    Raises:
        UserError: it is none of these, or the config is of another kind of model.
    """
    if model in SIZES:
        return SIZES[model]
    path = Path(model)
    if path.is_dir():
        path = path / CONFIG
    if not path.is_file():
        raise UserError(
            f"--model {model}: no model of that name, and no file or folder; "
            f"{nearest(model, ('gpt', *SIZES))}; or give the config.json of a Llama"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not the config.json of a model: {error}") from None
    return _read(values, path)


def _read(values: Any, path: Path) -> LlamaShape:
    kind = values.get("model_type") if isinstance(values, Mapping) else None
    if kind != "llama":
        raise UserError(f"{path} has model_type {kind!r}; this model is for 'llama'")
    if values.get("attention_bias") or values.get("mlp_bias"):
        raise UserError(f"{path} asks for biases, which this Llama does not have")
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    missing = [key for key in (*needed, "vocab_size") if not isinstance(values.get(key), int)]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}, whole numbers that say its size")
    dim, heads = values["hidden_size"], values["num_attention_heads"]
    if values.get("head_dim") not in (None, dim // heads) or dim % heads:
        raise UserError(
            f"{path}: hidden_size {dim} is not num_attention_heads {heads} times the width of a "
            f"head ({values.get('head_dim')}), which this Llama takes for granted"
        )
    # Newer configs keep the base and the scaling together.
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = values.get("rope_theta") or rope.get("rope_theta") or 10_000.0
    return LlamaShape(
        layers=values["num_hidden_layers"],
        dim=dim,
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        ffn=values["intermediate_size"],
        vocab_size=values["vocab_size"],
        theta=float(theta),
        scaling=_scaling(rope, path),
        eps=float(values.get("rms_norm_eps", 1e-6)),
        tied=bool(values.get("tie_word_embeddings", False)),
        longest=values.get("max_position_embeddings") or 2048,
    )


def _scaling(rope: Mapping[str, Any], path: Path) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UserError(f"{path}: rotary positions of type {kind!r}; known are linear and llama3")
    factor = float(rope["factor"])
    if kind == "linear":
        return RopeScaling(kind, factor)
    return RopeScaling(
        kind,
        factor,
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )


_OUTSIDE = {
    "tokens.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INSIDE = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


def theirs(name: str) -> str:
    """Return the name that transformers has for a parameter of `models.llama.Llama`."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, block, rest = name.split(".", 2)
    return f"model.layers.{block}.{_INSIDE[rest.removesuffix('.weight')]}.weight"
