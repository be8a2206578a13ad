"""Where a model's tensor-parallel plan comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...base.errors import UserError
from .words import matches

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


def plan_of(model: nn.Module, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The plan of a model: `given`, else its own `tensor_plan()`, else a Hugging Face `tp_plan`.

    Args:
        model: the whole model, on any device.

    Raises:
        UserError: none of these; says what to do.
    """
    if given is not None:
        return dict(given)
    method = getattr(model, "tensor_plan", None)
    if callable(method):
        return dict(method())
    if theirs := own_plan(model):
        return translate(model, theirs)
    raise UserError(f"{type(model).__name__} brings no tensor plan; {_WAYS}")


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
