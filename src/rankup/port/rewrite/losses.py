"""The loss that is differentiated: a mean over the batch, declared a sum over it, or a mean over
targets of which some count less, or not at all: each rank has others.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ...script.flow import argument, call_name, given, is_none, literal
from ...script.names import words_in
from ...script.torch_names import CLASS_WEIGHTS, LOSS_FUNCTIONS, LOSSES, last, words
from .script import Script
from .training import Training

# With these a loss divides by something other than the number of samples.
_WEIGHTED = ("weight", "ignore_index", "size_average", "reduce")
# transformers compares each position with its label, or with the one behind it.
_AT = re.compile(r"\w*(ForConditionalGeneration|Seq2SeqLM|ForMaskedLM|ForTokenClassification)$")
_BEHIND = re.compile(r"\w*(ForCausalLM|LMHeadModel)$")
_IGNORED = "-100"  # torch's own default, and what transformers expects
_PLAIN = words("view reshape flatten to cuda long contiguous transpose permute squeeze ravel int t")


class Kind(Enum):
    """The kinds of values, by what they are made of."""

    BATCH = "what a loader yields: a tensor, or tensors in a list or a dictionary"
    ROWS = "a tensor with a row or an element for each sample, made of that sample alone"
    PAIR = "two of these, as `max(dim=1)` and `topk` return them"
    SIZE = "the number of samples"
    SUM = "a sum over the samples"
    MEAN = "a mean over the samples"
    MASKED = "a mean over some of the samples' targets, or over their weights"
    MIXED = "two of these added up: no weight of a rank's gradient is right"
    FIXED = "nothing of the batch"
    UNKNOWN = "anything"


def differentiated(call: ast.Call) -> ast.expr | None:
    """`loss` of `loss.backward()`, `scaler.scale(loss).backward()`, `autograd.backward(loss)`."""
    if not isinstance(call.func, ast.Attribute):
        return None
    value: ast.expr = call.func.value
    if isinstance(value, ast.Call) and call_name(value) == "scale" and given(value):
        return given(value)[0]
    started = isinstance(value, ast.Name) and value.id in ("torch", "accelerator", "fabric")
    autograd = isinstance(value, ast.Attribute) and value.attr == "autograd"
    if (started or autograd) and given(call):
        return given(call)[0]
    return value


def reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses by its `reduction`; None of any other call.

    UNKNOWN where it may be one of torch's or another: `c` of `for c in (own, nn.MSELoss())`.
    """
    found = _makers(script, call)
    kinds = {_reduction(one[1]) for one in found if one is not None}
    if kinds and None in found:
        return Kind.UNKNOWN
    if kinds and f"{script.code(call.func)}.reduction" in script.assigned_texts:
        return Kind.UNKNOWN  # `criterion.reduction = "sum"`: here, or for an evaluation
    return kinds.pop() if len(kinds) == 1 else None


def plain_reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses; None of other calls, UNKNOWN where it is weighted."""
    found = _makers(script, call)
    makers = [one[1] for one in found if one is not None]
    if not makers or None in found:
        return None
    ignores = any(one is not None and loss_name(*one) in CLASS_WEIGHTS for one in found)
    if ignores and says_ignored(script):
        return Kind.UNKNOWN
    for one in makers:
        given_ = [argument(one, name) for name in _WEIGHTED] + one.args[2 if one is call else 0 :]
        spread = any(keyword.arg is None for keyword in one.keywords)
        if spread or any(value is not None and not is_none(value) for value in given_):
            return Kind.UNKNOWN
    return reduction(script, call) or Kind.UNKNOWN


def says_ignored(script: Script) -> bool:
    """True where one of the files has -100, torch's own default of `ignore_index`."""
    return any(
        literal(one.operand) == 100
        for file in script.flow.files
        for one in file.names.all(ast.UnaryOp)
    )


def full_name(script: Script, node: ast.AST, left: int = 4) -> str:
    """`Script.name` through assignments: `F = nn.functional`, `mse = F.mse_loss`."""
    known = script.name(node)
    if known.startswith("torch.") or not isinstance(node, ast.Name | ast.Attribute) or not left:
        return known
    made = [one for one in script.flow.origins(script.file, node) if one.node is not node]
    names = {full_name(script.sibling(one.file), one.node, left - 1) for one in made}
    if not made and isinstance(node, ast.Attribute):
        names = {f"{full_name(script, node.value, left - 1)}.{node.attr}"}
    found = names.pop() if len(names) == 1 else ""
    return found if found.startswith("torch.") else known


def loss_name(script: Script, made: ast.Call) -> str:
    """`cross_entropy`, or `CrossEntropyLoss`, of a call that says how a loss is reduced."""
    return last(full_name(script, made.func))


@lru_cache(maxsize=64)
def _makers(script: Script, call: ast.Call) -> list[tuple[Script, ast.Call] | None]:
    """The calls that say how a loss of torch is reduced; None for what is none of its losses."""
    name = full_name(script, call.func)
    if name.startswith("torch.nn.functional.") and last(name) in LOSS_FUNCTIONS:
        return [(script, call)]
    return [
        (script.sibling(one.file), one.node)
        if isinstance(one.node, ast.Call)
        and one.file.names.called(one.node).startswith("torch.nn.")
        and call_name(one.node) in LOSSES
        else None
        for one in script.flow.origins(script.file, call.func)
        if not is_none(one.node)
    ]


def _reduction(made: ast.Call) -> Kind:
    value = literal(argument(made, "reduction") or ast.Constant("mean"))
    if literal(argument(made, "size_average")) is False:
        value = "sum"
    kinds = {"mean": Kind.MEAN, "batchmean": Kind.MEAN, "sum": Kind.SUM, "none": Kind.ROWS}
    return kinds.get(str(value), Kind.UNKNOWN)


def constant(script: Script, node: ast.expr) -> bool:
    """True of a divisor that is the same for every batch: 32, `args.batch_size`."""
    if type(literal(node)) in (int, float):
        return True
    if isinstance(node, ast.BinOp):
        return constant(script, node.left) and constant(script, node.right)
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    found = [one.node for one in script.flow.origins(script.file, node)]
    return all(
        type(literal(one)) in (int, float)
        or (isinstance(one, ast.Attribute) and one.attr != "shape")
        or (isinstance(one, ast.Call) and call_name(one) in ("getenv", "get"))
        for one in found
    )


@dataclass(frozen=True)
class MaskedMean:
    """A call whose value is a mean over targets, some of which count less, or not at all.

    Attributes:
        units: text of what the mean divides by; empty where it could not be said.
        one_of: of several losses by this name others are means over all samples.
    """

    call: ast.expr
    units: str
    one_of: bool = False


def masked_call(training: Training, script: Script, call: ast.Call) -> MaskedMean | None:
    """A call that is a mean over some of its targets, or over their weights."""
    return (
        _of_torch(script, call)
        or _of_transformers(training, script, call)
        or _packed(script, call)
        or over_selected(script, call)
    )


def masked_division(script: Script, node: ast.BinOp) -> MaskedMean | None:
    """A sum that is divided by the sum of a mask."""
    over = _divided_by_mask(script, node)
    # Without its `.clamp(min=1)`: a rank with no target that counts has no weight.
    plain = re.fullmatch(r"[\w.\[\]]+", over)
    return MaskedMean(node, f"{over}.sum()" if plain else "") if over else None


def _divided_by_mask(script: Script, node: ast.BinOp) -> str:
    """Return the text of `mask` of `(loss * mask).sum() / mask.sum().clamp(min=1)`; else empty."""
    top, bottom = script.code(node.left), node.right
    while isinstance(node.op, ast.Div) and isinstance(bottom, ast.Call):
        if not isinstance(bottom.func, ast.Attribute):
            break
        if call_name(bottom) == "sum" and not given(bottom) and ".sum(" in top:
            mask = script.code(bottom.func.value)
            return mask if mask in top else ""
        bottom = bottom.func.value
    return ""


def over_selected(script: Script, call: ast.Call) -> MaskedMean | None:
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
        return MaskedMean(call, f"({script.code(mask)}).sum()")
    name = script.dotted(mask)
    made = [value for _, value in script.assigned(name, script.scope(mask))] if name else []
    known = bool(made) and all(isinstance(one, ast.Compare) for one in made)
    by_name = isinstance(value, ast.Call) or known
    if by_name or isinstance(mask, ast.Name):
        return MaskedMean(call, f"{name}.sum()" if by_name and name else "")
    return None


def _packed(script: Script, call: ast.Call) -> MaskedMean | None:
    """A loss of the steps of sequences that are packed: ranks have different numbers of steps."""
    if len(call.args) < 2:
        return None
    target = call.args[1]
    parts = [target, *(v for _, v in script.assigned(script.dotted(target), script.scope(call)))]
    packs = any(
        call_name(one) in ("pack_padded_sequence", "pack_sequence")
        for part in parts
        for one in script.inside(part, ast.Call)
    )
    if not packs or reduction(script, call) is not Kind.MEAN:
        return None
    return MaskedMean(call, f"{target.id}.size(0)" if isinstance(target, ast.Name) else "")


def _of_torch(script: Script, call: ast.Call) -> MaskedMean | None:
    """`F.cross_entropy(logits, targets, ignore_index=0)`, or a criterion that was made so.

    With `weight=` the mean is over the weights of the targets' classes.
    """
    makers = _makers(script, call)
    found = {
        one: masked
        for one in makers
        if one is not None
        and loss_name(*one) in CLASS_WEIGHTS
        and (masked := _by_targets(script, call, *one)) is not None
    }
    if not found or reduction(script, call) is not Kind.MEAN:
        return None
    alike = len(found) == len(makers) and len({one.units for one in found.values()}) == 1
    return next(iter(found.values())) if alike else MaskedMean(call, "", one_of=True)


def _by_targets(script: Script, call: ast.Call, at: Script, made: ast.Call) -> MaskedMean | None:
    """A mean over the targets that a loss takes by the call that makes it."""
    by_class = CLASS_WEIGHTS[loss_name(at, made)]
    ignore = argument(made, "ignore_index")
    weight = argument(made, "weight", by_class)
    weighted = weight is not None and not is_none(weight)
    default = says_ignored(script)
    if ignore is None and not weighted and not default:
        return None
    ignored = script.code(ignore) if ignore is not None else _IGNORED
    target = argument(call, "target", 1)
    again = _again(script, target) if target is not None else ""
    if not weighted or not again:
        return MaskedMean(call, f"({again} != {ignored}).sum()" if again else "")
    if ignore is not None or default:
        return MaskedMean(call, "")  # both
    weights = script.dotted(weight) if made is call else f"{script.dotted(call.func)}.weight"
    units = f"{weights}[{again}].sum()" if weights else ""
    if units and not isinstance(weight, ast.Call) and not _made_here(at, weight):
        units = f"{again}.numel() if {weights} is None else {units}"
    return MaskedMean(call, units)


def _made_here(script: Script, value: ast.expr | None) -> bool:
    """True of a name that is given what a call makes, and nothing else such as None."""
    name = script.dotted(value)
    made = script.assigned(name, script.scope(value)) if value is not None and name else []
    return bool(made) and all(isinstance(one, ast.Call) for _, one in made)


def _of_transformers(training: Training, script: Script, call: ast.Call) -> MaskedMean | None:
    """`model(input_ids=…, labels=…)` of a language model of transformers."""
    if "transformers" not in script.modules:
        return None
    if not (training.runs_model(script, call) or script.dotted(call.func).endswith("model")):
        return None
    labels = argument(call, "labels")
    stars = [one.value for one in call.keywords if one.arg is None]
    if labels is not None:
        targets = _again(script, labels)
    elif len(stars) == 1 and isinstance(stars[0], ast.Name):
        targets = f'{stars[0].id}["labels"]'
    else:
        return None
    kinds = {word for model in training.models for made in model.made for word in words_in(made)}
    if any(_BEHIND.match(kind) for kind in kinds):
        targets = f"{targets}[..., 1:]" if targets else ""
    elif not any(_AT.match(kind) for kind in kinds):
        return None
    return MaskedMean(call, f"({targets} != {_IGNORED}).sum()" if targets else "")


def _again(script: Script, value: ast.expr) -> str:
    """An expression's text where it may be said a second time, else empty."""
    for call in script.inside(value, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PLAIN:
            return ""
    return script.code(value)
