"""The result of fetching one thing: what is here now, for its record and the user, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..record import Item, Proof


@dataclass(frozen=True)
class FetchResult:
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


class FetchFailed(Exception):  # noqa: N818 - the fetch failed, the program did what it should
    """Why, and what to do; the message has no query and no credentials of a URL in it."""
