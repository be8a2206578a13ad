"""Where a model's tensor-parallel plan comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from ...base.errors import UserError
from .words import matches, packed

_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Identity),
)
_WHOLE = (nn.LayerNorm, nn.RMSNorm, nn.Flatten, nn.Softmax, nn.LogSoftmax)
# Hugging Face models bring a `tp_plan` with words of their own, as of transformers 4.50 to 5.
_THEIRS = {
    "colwise": "column",
    "colwise_rep": "column-gathered",
    "colwise_gather_output": "column-gathered",
    "rowwise": "row",
    "rowwise_rep": "row-split",
    "rowwise_split_input": "row-split",
    "embedding_rowwise": "embedding",
    "embedding_colwise": "embedding-column",
    "sequence_parallel": "sequence",
    "replicate": "replicate",
    "replicated_with_grad_allreduce": "replicate-partial",
}
_WAYS = (
    "ways out: give a plan (a dict of module name patterns to words, as in "
    "rankup.parallel.tensor.words), write a method tensor_plan() of the model that returns one, "
    "or use --strategy fsdp, which needs no plan"
)


def plan_of(model: nn.Module, given: Mapping[str, str] | None = None) -> tuple[dict[str, str], str]:
    """The plan, and where it is from, in words for people.

    In this order: `given`; the model's own `tensor_plan()`; a Hugging Face model's `tp_plan`;
    worked out, where the model is a stack of linear maps.

    Args:
        model: the whole model, on any device.

    Raises:
        UserError: none of these; names what stands in the way and what to do.
    """
    if given is not None:
        return dict(given), "given"
    method = getattr(model, "tensor_plan", None)
    if callable(method):
        return dict(method()), f"{type(model).__name__}.tensor_plan()"
    theirs = own_plan(model)
    if theirs:
        return translate(model, theirs), f"{type(model).__name__}'s tp_plan (transformers)"
    return automatic(model), "auto: a stack of linear maps"


def automatic(model: nn.Module) -> dict[str, str]:
    """A plan for linear maps that follow each other, in the order of their definition.

    Two maps of one nn.Sequential with nothing but activations and dropout between are cut by
    outputs, then by inputs: one all-reduce for both. A map without such a partner, or in a forward
    that is not known, is cut by outputs and gathered.

    Raises:
        UserError: there are other layers, or no linear map.
    """
    leaves = [(n, m) for n, m in model.named_modules() if next(m.children(), None) is None]
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            raise UserError(packed(name))
        strange = next(module.children(), None) is None and not isinstance(
            module, (nn.Linear, nn.Dropout, *_ELEMENTWISE, *_WHOLE)
        )
        if strange or any(True for _ in _direct(module)):
            what = f"{name or 'itself'} ({type(module).__name__})"
            raise UserError(
                f"no tensor plan for {type(model).__name__}: it brings none, and one can be worked "
                f"out only for linear maps, norms, activations and dropout, not for {what}; {_WAYS}"
            )
    chained = _chained(model)
    plan: dict[str, str] = {}
    open_map: tuple[str, nn.Linear] | None = None
    between: list[str] = []
    for name, module in leaves:
        if isinstance(module, nn.Linear):
            if (
                open_map is not None
                and open_map[1].out_features == module.in_features
                and chained.get(name) is not None
                and chained.get(name) == chained.get(open_map[0])
            ):
                plan[open_map[0]], plan[name] = "column", "row"
                plan.update(dict.fromkeys(between, "dropout"))
                open_map = None
            else:
                plan[name] = "column-gathered"
                open_map = (name, module)
            between = []
        elif isinstance(module, nn.Dropout):
            between.append(name)
        elif isinstance(module, _WHOLE):
            open_map = None
    if not plan:
        raise UserError(f"no tensor plan for {type(model).__name__}: no linear map in it; {_WAYS}")
    return plan


def _chained(model: nn.Module) -> dict[str, str]:
    """Name of a module -> that of the nn.Sequential it is a link of, if it is used only there."""
    everywhere = list(model.named_modules(remove_duplicate=False))
    uses = Counter(id(module) for _, module in everywhere)
    return {
        f"{name}.{child}" if name else child: name
        for name, module in everywhere
        if isinstance(module, nn.Sequential)
        for child, link in module.named_children()
        if uses[id(link)] == 1
    }


def _direct(module: nn.Module) -> list[nn.Parameter]:
    """Parameters of a module that only holds others, which it uses in a way we cannot know."""
    if next(module.children(), None) is None:
        return []
    return list(module.parameters(recurse=False))


def own_plan(model: nn.Module) -> dict[str, str] | None:
    """The plan that a Hugging Face model brings, in its words; None where there is none."""
    for name in ("tp_plan", "_tp_plan"):
        plan: Any = getattr(model, name, None)
        if isinstance(plan, dict) and plan:
            return dict(plan)
    return None


def translate(model: nn.Module, plan: dict[str, str]) -> dict[str, str]:
    """The same plan in our words.

    A plan of theirs is written for a family of models: entries for modules that this one does not
    have are left out.

    Raises:
        UserError: it has a word that we have no equal for.
    """
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found: dict[str, str] = {}
    for pattern, word in plan.items():
        # "embed_tokens" may also be spelled with its parameter: "embed_tokens.weight".
        module = pattern.removesuffix(".weight")
        if any(matches(module, name) for name in modules):
            if word not in _THEIRS:
                raise UserError(_unknown(model, pattern, word))
            found[module] = _THEIRS[word]
        elif any(matches(pattern, name) for name in parameters):
            raise UserError(_unknown(model, pattern, word))
    if not found:
        raise UserError(
            f"the tp_plan of {type(model).__name__} names no module of it: {', '.join(plan)}; "
            f"give a plan of your own, or use --strategy fsdp"
        )
    return found


def _unknown(model: nn.Module, pattern: str, word: str) -> str:
    return (
        f"the tp_plan of {type(model).__name__} says {word!r} of {pattern!r}, which rankup cannot "
        f"do; known are: {', '.join(_THEIRS)}. Give a plan of your own without it, or use "
        f"--strategy fsdp"
    )
