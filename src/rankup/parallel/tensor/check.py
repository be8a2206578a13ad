"""A plan held against the whole model, before anything is cut."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import nn

from ...base.errors import UserError, nearest
from .words import COLUMN, DEEP, EMBEDDING, ROW, Plan, Word, matches, named, uncovered

# What is cut here is handed over as it is: every rank needs the same number.
_EVEN = ("column", "row", "row-sequence")


def check(model: nn.Module, plan: Plan, tp: int) -> None:
    """Whether `plan` can cut `model`, the whole of it, over `tp` ranks.

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
