"""What the `config.json` of a Hugging Face model says, which may come from anybody; and sizes that
no model has. For a run and for `rankup plan` alike, without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import UserError

CONFIG = "config.json"
# No model has more. Of one that had, the parts alone would take hours to be made, also on meta.
_MOST = {"layers": 10_000, "hidden": 1_000_000, "heads": 100_000, "ffn": 10_000_000}
_MOST_OF_OTHERS = 1_000_000_000  # tokens of a vocabulary, or of a sequence


def is_whole(value: object) -> bool:
    """Return True for a whole number, which a truth value is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def refuse_sizes(sizes: Mapping[str, Any], names: Mapping[str, str], where: str = "") -> None:
    """Refuse sizes that no transformer has.

    Args:
        sizes: layers, hidden, heads, kv_heads, ffn and others, as far as they are known.
        names: how a size is called where it was given; by default as here.
        where: the file that they come from.

    Raises:
        UserError: one is no whole number from 1 on, or too large, or heads do not divide; names
            what would fit.
    """
    place = f"{where}: " if where else ""
    for name, value in sizes.items():
        shown = f"{place}{names.get(name, name)}"
        if not is_whole(value) or value < 1:
            raise UserError(f"{shown} is {value!r:.40}; a whole number from 1 on is due")
        most = _MOST.get("heads" if name == "kv_heads" else name, _MOST_OF_OTHERS)
        if value > most:
            raise UserError(f"{shown} is over {most:,}, and no model has as many; give its own")
    hidden, heads, kv_heads = (sizes.get(name) for name in ("hidden", "heads", "kv_heads"))
    if hidden and heads and hidden % heads:
        raise UserError(
            f"{place}{names.get('hidden', 'hidden')} {hidden} cannot be cut into "
            f"{names.get('heads', 'heads')} {heads} equal heads; nearest that fit: "
            f"{_divisors(hidden, heads)}"
        )
    if heads and kv_heads and heads % kv_heads:
        raise UserError(
            f"{place}{names.get('heads', 'heads')} {heads} cannot share "
            f"{names.get('kv_heads', 'kv_heads')} {kv_heads} equally; nearest that fit: "
            f"{_divisors(heads, kv_heads)}"
        )


def _divisors(whole: int, near: int) -> str:
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    fitting = sorted({*small, *(whole // n for n in small)})
    return ", ".join(map(str, sorted(sorted(fitting, key=lambda n: abs(n - near))[:3])))


@dataclass(frozen=True)
class ModelConfig:
    """The values of a `config.json`, or of an object in it.

    Attributes:
        where: the file or address, for messages.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of_file(cls, path: Path) -> ModelConfig:
        """Read a file; errors as of `of_text`."""
        try:
            text = path.read_text(encoding="utf-8-sig")  # as Windows' editors write it
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as text: {error}") from None
        return cls.of_text(text, str(path))

    @classmethod
    def of_text(cls, text: str, where: str) -> ModelConfig:
        """Read a text.

        Raises:
            UserError: it is not JSON, or no object.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not JSON: {error}; give a model's config.json") from None
        if not isinstance(values, Mapping):
            raise UserError(f"{where} holds no object; the config.json of a model is due")
        return cls(values, where)

    @property
    def kind(self) -> str:
        """The `model_type`; empty where there is none."""
        kind = self.values.get("model_type")
        return kind if isinstance(kind, str) else ""

    def whole(self, key: str, otherwise: int | None = None) -> int:
        """Return a whole number from 1 on.

        Args:
            otherwise: what is taken where the config does not say it; None: it has to.

        Raises:
            UserError: it is none, or lacks.
        """
        value = self._given(key, otherwise)
        if not is_whole(value) or value < 1:
            raise UserError(
                f"{self.where}: {key} is {value!r:.40}; a whole number from 1 on is due"
            )
        return int(value)

    def real(self, key: str, otherwise: float | None = None) -> float:
        """Return a number over 0; arguments and errors as of `whole`."""
        value = self._given(key, otherwise)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not 0 < value < math.inf:
            raise UserError(f"{self.where}: {key} is {value!r:.40}; a number over 0 is due")
        return float(value)

    def flag(self, key: str, otherwise: bool) -> bool:
        """Return true or false; arguments and errors as of `whole`."""
        value = self._given(key, otherwise)
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: {key} is {value!r:.40}; true or false is due")
        return value

    def _given(self, key: str, otherwise: Any) -> Any:
        value = self.values.get(key)
        if value is None and otherwise is None:
            raise UserError(f"{self.where} lacks {key}")
        return otherwise if value is None else value
