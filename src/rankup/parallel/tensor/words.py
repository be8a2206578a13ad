"""The words of a tensor-parallel plan.

A plan maps patterns of module names to words. `*` and the other signs of fnmatch stand for one part
of a dotted name: `blocks.*.norm` is `blocks.0.norm`, but not `blocks.0.mlp.norm`.

What flows between modules is *whole* (every rank has all of it), cut by *features* (each rank has
a slice of the last dimension) or a *part of the sequence* (each rank has a slice of dimension 1).

    word                     weights           takes      gives
    column                   cut by outputs    whole      features
    column-gathered          cut by outputs    whole      whole
    row                      cut by inputs     features   whole
    row-split                cut by inputs     whole      whole
    row-sequence             cut by inputs     features   sequence
    embedding                cut by rows       whole      whole
    embedding-sequence       cut by rows       whole      sequence
    embedding-column         cut by vectors    whole      whole
    positions-sequence       on every rank     whole      sequence
    sequence                 on every rank     sequence   sequence
    gather-sequence          (those inside)    sequence   (inside: whole)
    loss-parallel            cut by outputs    whole      a DTensor, cut by classes
    loss-parallel-sequence   cut by outputs    sequence   a DTensor, cut by classes
    replicate                on every rank     whole      whole
    replicate-partial        on every rank     features   features
    dropout                  none              features   features

`column heads=8` says that the outputs are 8 pieces that must stay in one piece each. `sequence`,
`replicate` and `replicate-partial` hold for all that is inside the module. A module that no pattern
names is `replicate`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from ...base.errors import UserError, nearest

Plan = Mapping[str, str]

COLUMN = ("column", "column-gathered", "loss-parallel", "loss-parallel-sequence")
ROW = ("row", "row-split", "row-sequence")
EMBEDDING = ("embedding", "embedding-sequence", "embedding-column")
# These hold for everything inside the module.
DEEP = ("sequence", "replicate", "replicate-partial")
WORDS = (*COLUMN, *ROW, *EMBEDDING, *DEEP, "positions-sequence", "gather-sequence", "dropout")


@dataclass(frozen=True)
class Word:
    """What a plan says of a module.

    Attributes:
        heads: pieces of the output that must not be cut through, None where any cut will do.
    """

    name: str
    heads: int | None = None

    @property
    def touches_sequence(self) -> bool:
        return self.name.endswith("sequence")

    @property
    def cuts(self) -> bool:
        return self.name in (*COLUMN, *ROW, *EMBEDDING)


def read(text: str, pattern: str) -> Word:
    """Parse a plan's word.

    Raises:
        UserError: it is unknown.
    """
    found = re.fullmatch(r"([a-z-]+)(?: heads=([1-9]\d*))?", text)
    if found is None or found[1] not in WORDS or (found[2] and found[1] not in COLUMN):
        name = text.split(" ")[0]
        hint = "only a column word takes heads=N" if name in WORDS else nearest(name, WORDS)
        raise UserError(f"tensor plan: {text!r} for {pattern!r} is no way to cut a module; {hint}")
    return Word(found[1], int(found[2]) if found[2] else None)


def matches(pattern: str, name: str) -> bool:
    """Whether a module's dotted name fits a pattern, part by part."""
    signs, parts = pattern.split("."), name.split(".")
    return len(signs) == len(parts) and all(map(fnmatch.fnmatchcase, parts, signs))


def named(model: nn.Module, plan: Plan) -> dict[str, Word]:
    """Module name -> word, for every module of `model` that the plan names.

    Raises:
        UserError: an unknown word; two patterns that say different things of one module.
    """
    words = {pattern: read(text, pattern) for pattern, text in plan.items()}
    found: dict[str, Word] = {}
    said_by: dict[nn.Module, str] = {}
    # A module that is used under two names is cut once.
    first = {module: name for name, module in model.named_modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        for pattern, word in words.items():
            if not matches(pattern, name):
                continue
            before = said_by.setdefault(module, pattern)
            if words[before] != word:
                raise UserError(
                    f"tensor plan: {name!r} is {plan[before]!r} by {before!r} and {plan[pattern]!r}"
                    f" by {pattern!r}; leave one pattern out, or make it narrower"
                )
            found.setdefault(first[module], word)
    return found


def uncovered(model: nn.Module, words: Mapping[str, Word]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with parameters of their own, of which neither their word nor one above speaks."""
    for name, module in model.named_modules():
        holds = any(True for _ in module.parameters(recurse=False))
        if holds and not _spoken_of(name, words):
            yield name, module


def _spoken_of(name: str, words: Mapping[str, Word]) -> bool:
    if name in words and words[name].name != "gather-sequence":
        return True
    parts = name.split(".")
    above = (".".join(parts[:i]) for i in range(len(parts)))
    return any(words[prefix].name in DEEP for prefix in above if prefix in words)
