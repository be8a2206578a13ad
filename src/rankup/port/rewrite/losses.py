"""The loss that is differentiated: a mean over the batch, a sum over it, or a mean over some of its
targets, of which each rank has others.
"""

from __future__ import annotations

import ast
import re
from enum import Enum
from functools import lru_cache

from ...script.flow import argument, call_name, given, is_none, literal
from ...script.names import words_in
from ...script.torch_names import CLASS_WEIGHTS, LOSS_FUNCTIONS, LOSSES, last, words
from .script import Script
from .training import Training

# With these a loss divides by something other than the number of samples.
_WEIGHTED = ("weight", "ignore_index", "size_average", "reduce")
# Where torch's losses take what older versions said their reduction by: behind input and target.
_BY_POSITION = {"CrossEntropyLoss": 1, "NLLLoss": 1, "BCELoss": 1, "BCEWithLogitsLoss": 1}
_OLDER = words("size_average reduce")
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
    FIXED = "nothing of the batch"
    UNKNOWN = "anything"


def differentiated(call: ast.Call) -> ast.expr | None:
    """`loss` of `loss.backward()`, `scaler.scale(loss).backward()`, `autograd.backward(loss)`."""
    if not isinstance(call.func, ast.Attribute):
        return None
    value: ast.expr = call.func.value
    if isinstance(value, ast.Call) and call_name(value) == "scale" and given(value):
        return given(value)[0]
    started = isinstance(value, ast.Name) and value.id in (
        "torch", "accelerator", "fabric", "rankup",
    )  # fmt: skip
    autograd = isinstance(value, ast.Attribute) and value.attr == "autograd"
    if (started or autograd) and given(call):
        return given(call)[0]
    return value


# --- torch's own losses


def reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses by its `reduction`; None of any other call.

    UNKNOWN where it may be one of torch's or another: `c` of `for c in (own, nn.MSELoss())`.
    """
    found = _makers(script, call)
    kinds = {_reduction(*one) for one in found if one is not None}
    if kinds and None in found:
        return Kind.UNKNOWN
    if kinds and f"{script.code(call.func)}.reduction" in script.assigned_texts:
        return Kind.UNKNOWN  # `criterion.reduction = "sum"`: here, or for an evaluation
    return kinds.pop() if len(kinds) == 1 else (Kind.UNKNOWN if kinds else None)


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


@lru_cache(maxsize=256)
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


def _reduction(script: Script, made: ast.Call) -> Kind:
    """By keyword, and by position: `nn.MSELoss(None, None, "sum")`, `nn.MSELoss(reduce=False)`."""
    texts = [literal(one) for one in made.args if isinstance(literal(one), str)]
    value = literal(argument(made, "reduction")) or (texts[-1] if texts else "mean")
    old = {name: literal(argument(made, name)) for name in _OLDER}
    if not texts:
        name = loss_name(script, made)
        first = (3 if name in CLASS_WEIGHTS else 2) if name in LOSS_FUNCTIONS else 0
        first = _BY_POSITION.get(name, first)
        plain = [literal(one) for one in made.args[first:]]
        flags = [one for one in plain if one is False or one is True]
        old["size_average"] = flags[0] if flags else old["size_average"]
        old["reduce"] = flags[1] if len(flags) > 1 else old["reduce"]
    if old["size_average"] is False:
        value = "sum"
    if old["reduce"] is False:
        value = "none"
    kinds = {"mean": Kind.MEAN, "batchmean": Kind.MEAN, "sum": Kind.SUM, "none": Kind.ROWS}
    return kinds.get(str(value), Kind.UNKNOWN)


# --- means over some of the targets, and what they divide by


def of_torch(script: Script, call: ast.Call) -> str | None:
    """`F.cross_entropy(logits, targets, ignore_index=0)`, or a criterion that was made so.

    With `weight=` the mean is over the weights of the targets' classes. None of any other call;
    empty where the units cannot be said.
    """
    makers = _makers(script, call)
    found = [
        units
        for one in makers
        if one is not None
        and loss_name(*one) in CLASS_WEIGHTS
        and (units := _by_targets(script, call, *one)) is not None
    ]
    if not found or reduction(script, call) is not Kind.MEAN:
        return None
    return found[0] if len(found) == len(makers) and len(set(found)) == 1 else ""


def _by_targets(script: Script, call: ast.Call, at: Script, made: ast.Call) -> str | None:
    """The units of a mean over the targets that a loss takes by the call that makes it."""
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
        return f"({again} != {ignored}).sum()" if again else ""
    if ignore is not None or default:
        return ""  # both
    weights = script.dotted(weight) if made is call else f"{script.dotted(call.func)}.weight"
    units = f"{weights}[{again}].sum()" if weights else ""
    if units and not isinstance(weight, ast.Call) and not _made_here(at, weight):
        units = f"{again}.numel() if {weights} is None else {units}"
    return units


def _made_here(script: Script, value: ast.expr | None) -> bool:
    """True of a name that is given what a call makes, and nothing else such as None."""
    name = script.dotted(value)
    made = script.assigned(name, script.scope(value)) if value is not None and name else []
    return bool(made) and all(isinstance(one, ast.Call) for _, one in made)


def of_transformers(training: Training, script: Script, call: ast.Call) -> str | None:
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
    return f"({targets} != {_IGNORED}).sum()" if targets else ""


def packed(script: Script, call: ast.Call) -> str | None:
    """A loss of the steps of sequences that are packed: ranks have different numbers of steps."""
    if len(call.args) < 2:
        return None
    target = call.args[1]
    made = script.assigned(script.dotted(target), script.scope(call))
    packs = any(
        call_name(one) in ("pack_padded_sequence", "pack_sequence")
        for one in script.inside([target, *(value for _, value in made)], ast.Call)
    )
    if not packs or reduction(script, call) is not Kind.MEAN:
        return None
    return f"{target.id}.size(0)" if isinstance(target, ast.Name) else ""


def _again(script: Script, value: ast.expr) -> str:
    """An expression's text where it may be said a second time, else empty."""
    for call in script.inside(value, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PLAIN:
            return ""
    return script.code(value)
