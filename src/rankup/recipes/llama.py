"""Sizes of Llama-shaped models: by name, or by Hugging Face's `config.json`. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError, nearest
from ..base.files import user_path
from .model_config import CONFIG, ModelConfig, refuse_sizes


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


def shape_of(model: str, flag: str = "--model") -> LlamaShape:
    """Return the sizes that a name, a `config.json` or the folder of one stands for.

    Raises:
        UserError: it is none of these, or the config is of another kind of model.
    """
    if flag == "--model" and model in SIZES:
        return SIZES[model]
    path = user_path(model, flag)
    if path.is_dir():
        path = path / CONFIG
    if not path.is_file():
        names = f"; {nearest(model, ('gpt', *SIZES))}" if flag == "--model" else ""
        raise UserError(f"{flag} {model}: there is no {path}{names}; give the folder of a Llama")
    return _shape(ModelConfig.of_file(path))


def kept(model: str, flag: str, tokenizer: str | None) -> dict[str, Any]:
    """Return what a run keeps of the `config.json` that was named: it may be gone at a resume."""
    path = user_path(model, flag).absolute()
    about = {"named": model, "path": str(path), "tokenizer": tokenizer}
    return {**about, "config": shape_of(model, flag).config()}


def shape_of_kept(kept: Mapping[str, Any]) -> LlamaShape:
    """Return the sizes that `kept` was made of."""
    return _shape(ModelConfig(kept["config"], kept["path"]))


def refuse_changed(kept: Mapping[str, Any]) -> None:
    """UserError where the file that `kept` was made of is there and has other sizes by now."""
    path = Path(kept["path"])
    if not (path / CONFIG if path.is_dir() else path).is_file():
        return
    was, now = kept["config"], shape_of(str(path), "--model").config()
    if changed := [name for name in was if was[name] != now[name]]:
        raise UserError(
            f"{path} has changed since the run began: {changed[0]} was {was[changed[0]]} and is "
            f"now {now[changed[0]]}; a resume goes on with the same model, so put it back, or "
            "start a new run"
        )


# How a size is called in a config.
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}


def _shape(config: ModelConfig) -> LlamaShape:
    _refuse_other_models(config)
    sizes = {name: config.whole(key) for name, key in _KEYS.items() if name != "kv_heads"}
    sizes["kv_heads"] = config.whole(_KEYS["kv_heads"], sizes["heads"])
    refuse_sizes(sizes, _KEYS, config.where)
    dim, heads = sizes["hidden"], sizes["heads"]
    if config.whole("head_dim", dim // heads) != dim // heads:
        raise UserError(
            f"{config.where}: hidden_size {dim} is not num_attention_heads {heads} times the "
            f"width of a head ({config.values.get('head_dim')}), which this Llama takes for granted"
        )
    # Newer configs keep the base and the scaling together.
    rope = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise UserError(f"{config.where}: its rotary positions are {rope!r:.40}, not an object")
    inside = ModelConfig(rope, config.where)
    return LlamaShape(
        layers=sizes["layers"],
        dim=dim,
        heads=heads,
        kv_heads=sizes["kv_heads"],
        ffn=sizes["ffn"],
        vocab_size=sizes["vocab"],
        theta=config.real("rope_theta", inside.real("rope_theta", 10_000.0)),
        scaling=_scaling(inside),
        eps=config.real("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", False),
        longest=config.whole("max_position_embeddings", 2048),
    )


def _refuse_other_models(config: ModelConfig) -> None:
    values, where = config.values, config.where
    if config.kind != "llama":
        kind = values.get("model_type")
        raise UserError(f"{where} has model_type {kind!r:.40}; this model is for 'llama'")
    if values.get("attention_bias") or values.get("mlp_bias"):
        raise UserError(f"{where} asks for biases, which this Llama does not have")
    if (gate := values.get("hidden_act", "silu")) != "silu":
        raise UserError(f"{where} has hidden_act {gate!r:.40}; this Llama's is silu")
    if values.get("quantization_config"):
        raise UserError(f"{where} is of quantised weights; give the model's own")


def _scaling(rope: ModelConfig) -> RopeScaling | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, rope.real("factor"))
    if kind != "llama3":
        raise UserError(
            f"{rope.where}: rotary positions of type {kind!r:.40}; known are linear and llama3"
        )
    low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
    if low >= high:
        raise UserError(f"{rope.where}: low_freq_factor {low} is not below {high}")
    length = rope.whole("original_max_position_embeddings")
    return RopeScaling(kind, rope.real("factor"), low, high, length)


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
