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

`dropout` is for an nn.Dropout alone: a mask of another kind (AlphaDropout, Dropout1d) is not cut.
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


# What is cut here is handed over as it is: every rank needs the same number.
_EVEN = ("column", "row", "row-sequence")


def check(model: nn.Module, plan: Plan, tp: int) -> None:
    """True if `plan` can cut `model`, the whole of it, over `tp` ranks.

    Raises:
        UserError: a pattern without a module, a word that does not fit one, sizes that do not
            come out; with the names, the numbers and what to do.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for pattern in plan:
        if not any(matches(pattern, name) for name in names):
            known = {re.sub(r"\b\d+\b", "*", name) for name in names if name}
            hint = nearest(pattern, known)
            raise UserError(f"tensor plan: {pattern!r} names no module of the model; {hint}")
    words = named(model, plan)
    refuse_packed(model, words)
    for name, word in words.items():
        _check_type(name, model.get_submodule(name), word)
        _check_sizes(name, model, word, tp)
    _check_complete(model, words)


def refuse_packed(model: nn.Module, words: Mapping[str, Word]) -> None:
    """Raises:
    UserError: what is to be cut is a module that holds its weights in a form that cannot be.
    """
    for name, module in model.named_modules():
        inside = [w for n, w in words.items() if n == name or n.startswith(f"{name}.")]
        if isinstance(module, nn.MultiheadAttention) and any(w.name not in DEEP for w in inside):
            raise UserError(packed(name))
        if isinstance(module, nn.RNNBase):
            raise UserError(
                f"tensor parallelism cannot hold {name!r}: {type(module).__name__} keeps its "
                f"weights in one flat list beside its parameters; use --strategy fsdp or ddp"
            )


def packed(name: str) -> str:
    """Why an nn.MultiheadAttention is not cut, and what to do."""
    return (
        f"tensor parallelism cannot cut {name!r}: nn.MultiheadAttention holds the weights of "
        f"query, key and value one above the other in in_proj_weight, so that a cut gives one "
        f"rank all queries and another all values, and its forward reads the weights without "
        f"calling its parts. Write attention with separate query, key and value nn.Linear and "
        f"F.scaled_dot_product_attention (see rankup/recipes/models/transformer.py), and cut "
        f"those 'column' and the output 'row'; or leave it uncut: a plan that names other "
        f"modules; or use --strategy fsdp"
    )


_HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")


def _check_type(name: str, module: nn.Module, word: Word) -> None:
    wanted: type[nn.Module] | None = None
    if word.name in (*COLUMN, *ROW):
        wanted = nn.Linear
    elif word.name in (*EMBEDDING, "positions-sequence"):
        wanted = nn.Embedding
    elif word.name == "dropout":
        wanted = nn.Dropout
    if wanted is not None and not isinstance(module, wanted):
        raise UserError(
            f"tensor plan: {name!r} is {word.name!r}, which is for nn.{wanted.__name__}; "
            f"it is a {type(module).__name__}"
        )


def _check_sizes(name: str, model: nn.Module, word: Word, tp: int) -> None:
    module = model.get_submodule(name)
    size, what = _cut(module, word)
    if size is None:
        return
    if word.name == "column":
        assert isinstance(module, nn.Linear)
        heads = word.heads or _heads(name, model, module)
        if heads is None:
            _refuse_fixed_heads(name, model)
        if heads is not None and heads % tp:
            raise UserError(
                f"tensor parallelism over {tp} ranks cannot give each the same number of the "
                f"{heads} heads of {name!r}; --tp must divide {heads}: {_divisors(heads)}"
            )
    if word.name in _EVEN and size % tp:
        raise UserError(
            f"tensor parallelism over {tp} ranks cannot cut the {size} {what} of {name!r} into "
            f"equal parts; --tp must divide {size}: {_divisors(size)}"
        )
    # torch gives each rank ceil(size / tp), and the last ones what is left.
    if -(-size // tp) * (tp - 1) >= size:
        raise UserError(
            f"tensor parallelism over {tp} ranks: {name!r} has {size} {what}, which come in parts "
            f"of {-(-size // tp)}, so that the last rank would have none; take a smaller --tp"
        )


def _cut(module: nn.Module, word: Word) -> tuple[int | None, str]:
    """Size and name of what is cut."""
    if isinstance(module, nn.Linear) and word.name in COLUMN:
        return module.out_features, "outputs"
    if isinstance(module, nn.Linear) and word.name in ROW:
        return module.in_features, "inputs"
    if isinstance(module, nn.Embedding) and word.name == "embedding-column":
        return module.embedding_dim, "features"
    if isinstance(module, nn.Embedding) and word.name in EMBEDDING:
        return module.num_embeddings, "rows"
    return None, ""


def _heads(name: str, model: nn.Module, module: nn.Linear) -> int | None:
    """Heads that a map makes, where the attention above it says how large one is."""
    size = getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", None)
    if not isinstance(size, int) or size < 1 or module.out_features % size:
        return None
    return module.out_features // size


def _refuse_fixed_heads(name: str, model: nn.Module) -> None:
    """An attention that views by its number of heads would make as many of half the size."""
    above = model.get_submodule(name.rpartition(".")[0])
    fixed = [word for word in _HEADS if isinstance(getattr(above, word, None), int)]
    if fixed:
        raise UserError(
            f"tensor plan: {name!r} makes the heads of a {type(above).__name__}, which has "
            f"{fixed[0]} and no head_dim; let its forward view with (-1, head_dim), as a rank has "
            f"a part of the heads, and write 'column heads=N'"
        )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)


def _check_complete(model: nn.Module, words: Mapping[str, Word]) -> None:
    """Where the sequence is cut, a module left out would silently learn from a part of it."""
    if not any(word.touches_sequence for word in words.values()):
        return
    left = [name or "the model itself" for name, _ in uncovered(model, words)]
    left += [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) and module.p > 0 and name not in words
    ]
    if left:
        raise UserError(
            f"tensor plan: it cuts the sequence, and says nothing of {', '.join(left[:5])}"
            f"{' and others' if len(left) > 5 else ''}; name each module with parameters or "
            f"dropout: 'sequence' where it gets a part of the sequence, 'replicate' where it "
            f"gets the whole"
        )
