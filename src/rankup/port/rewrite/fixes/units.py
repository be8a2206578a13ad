"""A loss that is a mean over the targets that count, or over weights: each rank has others."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ....script.flow import argument, call_name, given, returned
from ....script.names import Function
from ...rules.masked import counted_by
from ..context import Context
from ..expressions import words
from ..losses import divided, function_of, reduction
from ..models import assigned
from ..script import Script
from ..training import Loop
from ..values import Kind

_LOSSES = {
    "torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss",
    "torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss",
}  # fmt: skip
# transformers compares each position with its label, or with the one behind it.
_AT = re.compile(r"\w*(ForConditionalGeneration|Seq2SeqLM|ForMaskedLM|ForTokenClassification)$")
_BEHIND = re.compile(r"\w*(ForCausalLM|LMHeadModel)$")
_IGNORED = "-100"  # torch's own default, and what transformers expects
_PLAIN = {
    "view", "reshape", "flatten", "to", "cuda", "long", "contiguous", "transpose", "permute",
    "squeeze", "ravel", "int", "t",
}  # fmt: skip


@dataclass(frozen=True)
class Masked:
    """A call whose value is a mean over targets, some of which count less, or not at all.

    Attributes:
        units: text of what the mean divides by; empty where it could not be said.
    """

    call: ast.expr
    units: str


def count(context: Context) -> None:
    """`rankup.count((labels != -100).sum())` between a mean over some targets and its backward."""
    script = context.script
    for call in context.training.backwards:
        scope = script.scope(call)
        start = call.func.value if isinstance(call.func, ast.Attribute) else call
        loop = next((one for one in context.training.loops if one.node in script.above(call)), None)
        found = {one.call: one for one in masked(context, start, loop)}
        if not found:
            continue
        first = next(iter(found.values()))
        statement = script.statement(first.call)
        alone = (
            len(found) == 1
            and first.units
            and script.scope(statement) is scope
            and call not in script.inside(statement, ast.Call)
            and not hasattr(statement, "body")
            and script.first_on_line(script.span(statement)[0])
            and (loop is None or loop.node in script.above(statement))
        )
        if not alone:
            context.leave(
                call,
                "the loss is a mean over the targets that count, of which ranks have different "
                "numbers: call rankup.count(number of them, or sum of their weights) before this",
            )
            continue
        context.after(statement, f"rankup.count({first.units})")
        context.done(
            first.call, "the mean is over the targets of all ranks that count (rankup.count)"
        )


def masked(
    context: Context, expression: ast.AST, loop: Loop | None, depth: int = 0
) -> list[Masked]:
    """The masked means that an expression is made of, through the names of its function.

    Args:
        loop: what it stands in; a name that is given a value there does not have one of elsewhere.
    """
    script = context.script
    found = [one for call in script.inside(expression, ast.Call) if (one := _masked(context, call))]
    for division in script.inside(expression, ast.BinOp):
        over = counted_by(script.file, division)
        if over:
            units = script.code(division.right)
            found.append(Masked(division, units if re.fullmatch(r"[\w.\[\]]+", over) else ""))
    calls = list(script.inside(expression, ast.Call))
    found += [one for call in calls if (one := _selected(script, call))]
    if found or depth > 3:
        return found
    for call in calls:
        own = function_of(script, call)
        if own is not None and _counts(context, *own, depth):
            found.append(Masked(call, ""))
    if found:
        return found
    for name in script.inside(expression, ast.Name):
        values = [value for _, value in context.training.assigned(name.id, script.scope(name))]
        if loop is not None:
            values = [one for one in values if loop.node in script.above(one)] or values
        for value in values:
            if value is not expression and name not in script.inside(value, ast.Name):
                found += masked(context, value, loop, depth + 1)
    return found


def _masked(context: Context, call: ast.Call) -> Masked | None:
    return _of_torch(context, call) or _of_transformers(context, call) or _packed(context, call)


def _counts(context: Context, other: Script, function: Function, depth: int) -> bool:
    """True where a function of the script's files returns a mean over some of its targets."""
    values = returned(function)
    parts = [one for value in values for one in other.inside(value, ast.Name)]
    if any(divided(other, one.id, function) for one in parts):
        return True
    if other is not context.script:
        return False
    return any(masked(context, value, None, depth + 2) for value in values)


def _selected(script: Script, call: ast.Call) -> Masked | None:
    """`losses[mask].mean()`, `losses.masked_select(mask).mean()`: over what a mask selects."""
    if call_name(call) != "mean" or given(call) or not isinstance(call.func, ast.Attribute):
        return None
    value = call.func.value
    if isinstance(value, ast.Call) and call_name(value) == "masked_select" and value.args:
        mask: ast.expr = value.args[-1]
    elif isinstance(value, ast.Subscript):
        mask = value.slice
    else:
        return None
    if isinstance(mask, ast.Compare):
        return Masked(call, f"({script.code(mask)}).sum()")
    name = script.dotted(mask)
    made = [value for _, value in assigned(script, name, script.scope(mask))] if name else []
    known = bool(made) and all(isinstance(one, ast.Compare) for one in made)
    by_name = isinstance(value, ast.Call) or known
    if by_name or isinstance(mask, ast.Name):
        return Masked(call, f"{name}.sum()" if by_name and name else "")
    return None


def _packed(context: Context, call: ast.Call) -> Masked | None:
    """A loss of the steps of sequences that are packed: ranks have different numbers of steps."""
    script = context.script
    if reduction(script, call) is not Kind.MEAN or len(call.args) < 2:
        return None
    target = call.args[1]
    parts = [target, *(v for _, v in assigned(script, script.dotted(target), script.scope(call)))]
    packs = any(
        call_name(one) in ("pack_padded_sequence", "pack_sequence")
        for part in parts
        for one in script.inside(part, ast.Call)
    )
    if not packs:
        return None
    return Masked(call, f"{target.id}.size(0)" if isinstance(target, ast.Name) else "")


def _of_torch(context: Context, call: ast.Call) -> Masked | None:
    """`F.cross_entropy(logits, targets, ignore_index=0)`, or a criterion that was made so.

    With `weight=` the mean is over the weights of the targets' classes.
    """
    script = context.script
    made = call if script.name(call.func) in _LOSSES else _criterion(context, call)
    if made is None or (made is call and script.name(call.func).startswith("torch.nn.C")):
        return None
    reduction = argument(made, "reduction")
    if reduction is not None and "mean" not in script.code(reduction):
        return None
    ignore = argument(made, "ignore_index")
    weight = argument(made, "weight", 2 if made is call else 0)
    weighted = weight is not None and script.code(weight) != "None"
    if ignore is not None:
        ignored = script.code(ignore)
    elif weighted or _says(context, _IGNORED):
        ignored = _IGNORED
    else:
        return None
    target = argument(call, "target", 1)
    again = _again(context, target) if target is not None else ""
    if not weighted or not again:
        return Masked(call, f"({again} != {ignored}).sum()" if again else "")
    if ignore is not None or _says(context, _IGNORED):
        return Masked(call, "")  # both
    weights = f"{script.dotted(call.func)}.weight"
    if weight is not None and made is call:
        weights = script.dotted(weight)
    return Masked(call, f"{weights}[{again}].sum()" if weights else "")


def _criterion(context: Context, call: ast.Call) -> ast.Call | None:
    """The `CrossEntropyLoss(…)` that is called."""
    script = context.script
    name = script.dotted(call.func)
    if not name:
        return None
    scope = script.scope(call)
    given = []
    if isinstance(scope, Function) and name in script.parameters(scope):
        given = [script.given(scope, name, one) for one in script.calls_of.get(scope, [])]
        names = {(script.dotted(one), script.scope(one)) for one in given if one is not None}
    else:
        names = {(name, scope), (name, script.tree)}
    for written, where in names:
        for _, value in context.training.assigned(written, where) if written else ():
            for made in script.inside(value, ast.Call):
                if script.name(made.func) in _LOSSES:
                    return made
    return None


def _of_transformers(context: Context, call: ast.Call) -> Masked | None:
    """`model(input_ids=…, labels=…)` of a language model of transformers."""
    script = context.script
    if not script.modules & {"transformers"}:
        return None
    names = {model.name for model in context.training.models} | context.training.parameter_names
    name = script.dotted(call.func)
    if name not in names and not name.endswith("model"):
        return None
    labels = argument(call, "labels")
    stars = [one.value for one in call.keywords if one.arg is None]
    if labels is not None:
        targets = _again(context, labels)
    elif len(stars) == 1 and isinstance(stars[0], ast.Name):
        targets = f'{stars[0].id}["labels"]'
    else:
        return None
    kinds = {
        word for model in context.training.models for made in model.made for word in words(made)
    }
    if any(_BEHIND.match(kind) for kind in kinds):
        targets = f"{targets}[..., 1:]" if targets else ""
    elif not any(_AT.match(kind) for kind in kinds):
        return None
    return Masked(call, f"({targets} != {_IGNORED}).sum()" if targets else "")


def _again(context: Context, value: ast.expr) -> str:
    """An expression's text where it may be said a second time, else empty."""
    for call in context.script.inside(value, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PLAIN:
            return ""
    return context.script.code(value)


def _says(context: Context, number: str) -> bool:
    return any(
        file.code(one) == number
        for file in context.script.whole_flow.files
        for one in file.names.all(ast.UnaryOp)
    )
