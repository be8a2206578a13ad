"""Sizes of Llama-shaped models: by name, or by Hugging Face's `config.json`. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError, nearest
from ..base.files import user_path

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
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not the config.json of a model: {error}") from None
    if not isinstance(values, Mapping):
        raise UserError(f"{path} holds no object; the config.json of a model is due")
    return _Config(values, path).shape()


def kept(model: str, flag: str, tokenizer: str | None) -> dict[str, Any]:
    """Return what a run keeps of the `config.json` that was named: it may be gone at a resume."""
    path = user_path(model, flag).absolute()
    about = {"named": model, "path": str(path), "tokenizer": tokenizer}
    return {**about, "config": shape_of(model, flag).config()}


def shape_of_kept(kept: Mapping[str, Any]) -> LlamaShape:
    """Return the sizes that `kept` was made of."""
    return _Config(kept["config"], Path(kept["path"])).shape()


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


@dataclass(frozen=True)
class _Config:
    """The values of a `config.json`, which may come from anybody."""

    values: Mapping[str, Any]
    path: Path

    def shape(self) -> LlamaShape:
        self._refuse_other_models()
        dim, heads = self._whole("hidden_size"), self._whole("num_attention_heads")
        if dim % heads or self._whole("head_dim", dim // heads) != dim // heads:
            raise UserError(
                f"{self.path}: hidden_size {dim} is not num_attention_heads {heads} times the "
                f"width of a head ({self.values.get('head_dim')}), which this Llama takes for "
                "granted"
            )
        # Newer configs keep the base and the scaling together.
        rope = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise UserError(f"{self.path}: its rotary positions are {rope!r:.40}, not an object")
        inside = _Config(rope, self.path)
        return LlamaShape(
            layers=self._whole("num_hidden_layers"),
            dim=dim,
            heads=heads,
            kv_heads=self._whole("num_key_value_heads", heads),
            ffn=self._whole("intermediate_size"),
            vocab_size=self._whole("vocab_size"),
            theta=self._real("rope_theta", inside._real("rope_theta", 10_000.0)),
            scaling=inside._scaling(),
            eps=self._real("rms_norm_eps", 1e-6),
            tied=self.values.get("tie_word_embeddings") is True,
            longest=self._whole("max_position_embeddings", 2048),
        )

    def _refuse_other_models(self) -> None:
        kind = self.values.get("model_type")
        if kind != "llama":
            raise UserError(f"{self.path} has model_type {kind!r:.40}; this model is for 'llama'")
        if self.values.get("attention_bias") or self.values.get("mlp_bias"):
            raise UserError(f"{self.path} asks for biases, which this Llama does not have")
        if (gate := self.values.get("hidden_act", "silu")) != "silu":
            raise UserError(f"{self.path} has hidden_act {gate!r:.40}; this Llama's is silu")
        if self.values.get("quantization_config"):
            raise UserError(f"{self.path} is of quantised weights; give the model's own")

    def _whole(self, key: str, otherwise: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and otherwise is not None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            said = "lacks" if value is None else f"has {value!r:.40} as"
            raise UserError(f"{self.path} {said} {key}, a whole number from 1 on")
        return value

    def _real(self, key: str, otherwise: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and otherwise is not None:
            return otherwise
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not fits or not 0 < float(value or 0) < math.inf:
            said = "lacks" if value is None else f"has {value!r:.40} as"
            raise UserError(f"{self.path} {said} {key}, a number over 0")
        return float(value or 0)

    def _scaling(self) -> RopeScaling | None:
        kind = self.values.get("rope_type") or self.values.get("type") or "default"
        if kind == "default":
            return None
        if kind == "linear":
            return RopeScaling(kind, self._real("factor"))
        if kind != "llama3":
            raise UserError(
                f"{self.path}: rotary positions of type {kind!r:.40}; known are linear and llama3"
            )
        low, high = self._real("low_freq_factor"), self._real("high_freq_factor")
        if low >= high:
            raise UserError(f"{self.path}: low_freq_factor {low} is not below {high}")
        length = self._whole("original_max_position_embeddings")
        return RopeScaling(kind, self._real("factor"), low, high, length)


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
