"""What one fetch has brought, for its record and for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..record import Item, Proof


@dataclass(frozen=True)
class Came:
    """One thing that is here now.

    Attributes:
        variables, offline, proof, note: as in `Record`.
        lines: what a user should know of it: what was left out, how it is loaded.
    """

    items: tuple[Item, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    offline: Mapping[str, str] = field(default_factory=dict)
    proof: Proof = "none"
    note: str = ""
    lines: tuple[str, ...] = ()
