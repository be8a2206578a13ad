"""A model's tensor-parallel plan: where it comes from, what it names, and what speaks against it.

`*` and the other signs of fnmatch stand for one part of a dotted name: `blocks.*.norm` is
`blocks.0.norm`, but not `blocks.0.mlp.norm`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from ...base.errors import UserError, nearest
from .styles import (
    EmbeddingToSequence,
    GatherSequence,
    PartOfDropout,
    PositionsToSequence,
    Replicated,
)

Plan = Mapping[str, ParallelStyle]

# Hugging Face models bring a `tp_plan` with words of their own, as of transformers 4.50 to 5.
_THEIRS: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "sequence_parallel": lambda: Replicated(parts=True),
    "replicate": Replicated,
    "replicated_with_grad_allreduce": lambda: Replicated(parts=True),
}
_WAYS = (
    "ways out: give a plan (a dict of module name patterns to styles, as torch's "
    "ColwiseParallel()), write a method tensor_plan() of the model that returns one, or use "
    "--strategy fsdp, which needs no plan"
)
_CUT = (ColwiseParallel, RowwiseParallel)
# On a sequence of which ranks have parts.
_ON_SEQUENCE = (EmbeddingToSequence, PositionsToSequence, GatherSequence)


def plan_of(model: nn.Module, given: Plan | None = None) -> dict[str, ParallelStyle]:
    """The plan of a model: `given`, else its own `tensor_plan()`, else a Hugging Face `tp_plan`.

    Args:
        model: the whole model, on any device.

    Raises:
        UserError: none of these, or what they say is no style; says what to do.
    """
    method = getattr(model, "tensor_plan", None)
    if given is not None:
        plan = dict(given)
    elif callable(method):
        plan = dict(method())
    elif theirs := _hugging_face(model):
        plan = _translate(model, theirs)
    else:
        raise UserError(f"{type(model).__name__} brings no tensor plan; {_WAYS}")
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle):
            raise UserError(
                f"tensor plan: {style!r} for {pattern!r} is no style; since 0.3 a plan has those "
                f"of torch.distributed.tensor.parallel: ColwiseParallel() where it was 'column', "
                f"RowwiseParallel() where it was 'row'"
            )
    return plan


def _hugging_face(model: nn.Module) -> dict[str, str] | None:
    """The plan that a Hugging Face model brings, in its words; None where there is none."""
    for name in ("tp_plan", "_tp_plan"):
        plan: Any = getattr(model, name, None)
        if isinstance(plan, dict) and plan:
            return dict(plan)
    return None


def _translate(model: nn.Module, plan: dict[str, str]) -> dict[str, ParallelStyle]:
    """The same plan in styles.

    A plan of theirs is written for a family of models: entries for modules that this one does not
    have are left out.

    Raises:
        UserError: it has a word that no style is known for.
    """
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found: dict[str, ParallelStyle] = {}
    for pattern, word in plan.items():
        # "embed_tokens" may also be spelled with its parameter: "embed_tokens.weight".
        module = pattern.removesuffix(".weight")
        named = any(matches(module, name) for name in modules)
        if word in _THEIRS and named:
            found[module] = _THEIRS[word]()
        elif named or any(matches(pattern, name) for name in parameters):
            raise UserError(
                f"the tp_plan of {type(model).__name__} says {word!r} of {pattern!r}, which rankup "
                f"cannot do; known are: {', '.join(_THEIRS)}. Give a plan of your own without it, "
                f"or use --strategy fsdp"
            )
    if not found:
        raise UserError(
            f"the tp_plan of {type(model).__name__} names no module of it: {', '.join(plan)}; "
            f"give a plan of your own, or use --strategy fsdp"
        )
    return found


def matches(pattern: str, name: str) -> bool:
    """Whether a module's dotted name fits a pattern, part by part."""
    signs, parts = pattern.split("."), name.split(".")
    return len(signs) == len(parts) and all(map(fnmatch.fnmatchcase, parts, signs))


def named(model: nn.Module, plan: Plan) -> dict[str, ParallelStyle]:
    """Module name -> style, for every module of `model` that the plan names.

    Raises:
        UserError: two patterns name one module.
    """
    found: dict[str, ParallelStyle] = {}
    said_by: dict[nn.Module, str] = {}
    # A module that is used under two names is cut once.
    first = {module: name for name, module in model.named_modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        for pattern, style in plan.items():
            if not matches(pattern, name):
                continue
            if (before := said_by.setdefault(module, pattern)) != pattern:
                raise UserError(
                    f"tensor plan: {name!r} is named by {before!r} and by {pattern!r}; leave one "
                    f"pattern out, or make it narrower"
                )
            found.setdefault(first[module], style)
    return found


def uncovered(
    model: nn.Module, styles: Mapping[str, ParallelStyle]
) -> Iterator[tuple[str, nn.Module]]:
    """Modules with parameters of their own, of which neither their style nor one above speaks."""

    def spoken_of(name: str) -> bool:
        if name in styles and not isinstance(styles[name], GatherSequence):
            return True
        parts = name.split(".")
        above = (".".join(parts[:i]) for i in range(len(parts)))
        return any(isinstance(styles.get(prefix), Replicated) for prefix in above)

    for name, module in model.named_modules():
        holds = any(True for _ in module.parameters(recurse=False))
        if holds and not spoken_of(name):
            yield name, module


def check(model: nn.Module, plan: Plan, tp: int) -> None:
    """Refuse a plan that cannot cut `model`, the whole of it, over `tp` ranks.

    Raises:
        UserError: a pattern without a module, a style that does not fit one, sizes that do not
            come out; with the names, the numbers and what to do.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for pattern in plan:
        if not any(matches(pattern, name) for name in names):
            known = {re.sub(r"\b\d+\b", "*", name) for name in names if name}
            hint = nearest(pattern, known)
            raise UserError(f"tensor plan: {pattern!r} names no module of the model; {hint}")
    styles = named(model, plan)
    _refuse_packed(model, styles)
    for name, style in styles.items():
        _check_type(name, model.get_submodule(name), style)
        _check_sizes(name, model, style, tp)
    _check_complete(model, styles)


def _refuse_packed(model: nn.Module, styles: Mapping[str, ParallelStyle]) -> None:
    """UserError where a module is to be cut that holds its weights in a form that cannot be."""
    for name, module in model.named_modules():
        inside = [s for n, s in styles.items() if n == name or n.startswith(f"{name}.")]
        cut = any(not isinstance(style, Replicated) for style in inside)
        if isinstance(module, nn.MultiheadAttention) and cut:
            raise UserError(
                f"tensor parallelism cannot cut {name!r}: nn.MultiheadAttention holds the weights "
                f"of query, key and value one above the other in in_proj_weight, so that a cut "
                f"gives one rank all queries and another all values, and its forward reads the "
                f"weights without calling its parts. Write attention with separate query, key and "
                f"value nn.Linear and F.scaled_dot_product_attention (see "
                f"rankup/recipes/models/transformer.py), and give those ColwiseParallel() and the "
                f"output RowwiseParallel(); or leave it uncut: a plan that names other modules; or "
                f"use --strategy fsdp"
            )
        if isinstance(module, nn.RNNBase):
            raise UserError(
                f"tensor parallelism cannot hold {name!r}: {type(module).__name__} keeps its "
                f"weights in one flat list beside its parameters; use --strategy fsdp or ddp"
            )


_HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")


def _check_type(name: str, module: nn.Module, style: ParallelStyle) -> None:
    wanted: tuple[type[nn.Module], ...] = ()
    if isinstance(style, EmbeddingToSequence | PositionsToSequence):
        wanted = (nn.Embedding,)
    elif isinstance(style, _CUT):
        wanted = (nn.Linear, nn.Embedding)
    elif isinstance(style, PartOfDropout):
        wanted = (nn.Dropout,)
    if wanted and not isinstance(module, wanted):
        raise UserError(
            f"tensor plan: {name!r} is {type(style).__name__}, which is for "
            f"{' and '.join(f'nn.{kind.__name__}' for kind in wanted)}; it is a "
            f"{type(module).__name__}"
        )


def _check_sizes(name: str, model: nn.Module, style: ParallelStyle, tp: int) -> None:
    """Every rank needs the same of what is handed over as it is, and none may have nothing."""
    module = model.get_submodule(name)
    size, what, even = _cut(module, style)
    if size is None or tp == 1:
        return
    by_head = _heads(name, model, module) if isinstance(style, ColwiseParallel) else None
    if by_head is not None and by_head % tp:
        raise UserError(
            f"tensor parallelism over {tp} ranks cannot give each the same number of the "
            f"{by_head} heads of {name!r}; --tp must divide {by_head}: {_divisors(by_head)}"
        )
    if even and isinstance(style, ColwiseParallel) and by_head is None:
        _refuse_fixed_heads(name, model)
    if even and size % tp:
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


def _cut(module: nn.Module, style: ParallelStyle) -> tuple[int | None, str, bool]:
    """Size and name of what is cut, and whether the parts have to be equal."""
    if isinstance(style, ColwiseParallel):
        handed_over = style.use_local_output and style.output_layouts == (Shard(-1),)
        if isinstance(module, nn.Linear):
            return module.out_features, "outputs", handed_over
        if isinstance(module, nn.Embedding):
            return module.embedding_dim, "features", handed_over
    if isinstance(style, RowwiseParallel):
        if isinstance(module, nn.Linear):
            return module.in_features, "inputs", style.input_layouts == (Shard(-1),)
        if isinstance(module, nn.Embedding):
            return module.num_embeddings, "rows", False
    return None, "", False


def _heads(name: str, model: nn.Module, module: nn.Module) -> int | None:
    """Heads that a map makes, where the attention above it says how large one is."""
    size = getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", None)
    outputs = getattr(module, "out_features", None)
    if not isinstance(size, int) or size < 1 or not isinstance(outputs, int) or outputs % size:
        return None
    return outputs // size


def _refuse_fixed_heads(name: str, model: nn.Module) -> None:
    """An attention that views by its number of heads would make as many of half the size."""
    above = model.get_submodule(name.rpartition(".")[0])
    fixed = [word for word in _HEADS if isinstance(getattr(above, word, None), int)]
    if fixed:
        raise UserError(
            f"tensor plan: {name!r} makes the heads of a {type(above).__name__}, which has "
            f"{fixed[0]} and no head_dim; let its forward view with (-1, head_dim), as a rank has "
            f"a part of the heads, and keep head_dim as an attribute"
        )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)


def _check_complete(model: nn.Module, styles: Mapping[str, ParallelStyle]) -> None:
    """Where the sequence is cut, a module left out would silently learn from a part of it."""
    if not any(isinstance(style, _ON_SEQUENCE) for style in styles.values()):
        return
    left = [name or "the model itself" for name, _ in uncovered(model, styles)]
    left += [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) and module.p > 0 and name not in styles
    ]
    if left:
        raise UserError(
            f"tensor plan: it cuts the sequence, and says nothing of {', '.join(left[:5])}"
            f"{' and others' if len(left) > 5 else ''}; name each module with parameters or "
            f"dropout: Replicated(parts=True) or PartOfDropout() where it gets a part of the "
            f"sequence, Replicated() where it gets the whole"
        )
