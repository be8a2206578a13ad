"""Stands in for tiktoken: see tools/stand_ins/README.md."""

from __future__ import annotations

from collections.abc import Iterable


class Encoding:
    """A token is a byte."""

    n_vocab = 256

    def encode(self, text: str, allowed_special: object = None) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of bytes; what is none becomes a mark."""
        return bytes(token % 256 for token in tokens).decode(errors="replace")


def get_encoding(encoding_name: str) -> Encoding:
    """The one that there is."""
    return Encoding()
