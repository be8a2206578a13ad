"""A loss that is a mean over the targets that count, of which ranks have different numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import Flow, argument, call_name, given
from ...script.names import walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import CLASS_WEIGHTS
from .facts import calls, trained_here
from .numbers import loop_text, loss_trains
from .rule import Hit, Rule

# Of these, transformers computes a mean over the labels that are not -100.
_PER_TOKEN = re.compile(
    r"(ForConditionalGeneration|Seq2SeqLM|ForCausalLM|LMHeadModel|ForMaskedLM|ForTokenClassification)\b"
)


def masked_mean(file: File, script: Script) -> Iterator[Hit]:
    """RK125: a mean over valid targets, of which ranks have different numbers."""
    if not script.train_loops:
        return
    if any(
        dotted == "rankup.count" or (dotted.endswith(".count") and dotted.startswith("rankup"))
        for one in script.files
        for _, dotted in calls(one, "count")
    ):
        return
    if script.distributed and any("world_size" in loop_text(loop) for loop in script.train_loops):
        return
    todo = "rankup.count(int((targets != ignored).sum())) before backward()"
    message = "a mean over valid targets only: ranks have different numbers of them"
    for loss in script.losses:
        if (
            loss.file is file
            and isinstance(loss.node, ast.Call)
            and (
                (argument(loss.node, "ignore_index") is not None or _by_class(file, loss.node))
                and loss_trains(file, script, loss.node)
            )
        ):
            yield Hit(loss.node, message, todo)
    for call in file.names.all(ast.Call):
        if _of_transformers(file, script, call) and trained_here(file, script, call):
            yield Hit(call, message, "rankup.count((labels != -100).sum()) before backward()")
    for call in file.names.all(ast.Call):
        masks = selecting(file, script.flow, call)
        if (masks or _packed(file, script, call)) and trained_here(file, script, call):
            yield Hit(call, message, todo)
    for node in file.names.all(ast.BinOp):
        if counted_by(file, node) and trained_here(file, script, node):
            yield Hit(node, message, todo)


def selecting(file: File, flow: Flow, call: ast.Call) -> str:
    """The text of `mask` of `losses[mask].mean()` and `losses.masked_select(mask).mean()`."""
    if call_name(call) != "mean" or given(call) or not isinstance(call.func, ast.Attribute):
        return ""
    value = call.func.value
    if isinstance(value, ast.Call) and call_name(value) == "masked_select" and value.args:
        return file.code(value.args[-1])
    if not isinstance(value, ast.Subscript):
        return ""
    mask = value.slice
    compared = [mask, *(one.node for one in flow.origins(file, mask))]
    return file.code(mask) if any(isinstance(one, ast.Compare) for one in compared) else ""


def _packed(file: File, script: Script, call: ast.Call) -> bool:
    """True of a loss of packed sequences: ranks have different numbers of steps."""
    losses = {one.node for one in script.losses}
    if len(call.args) < 2 or not (
        call in losses or losses & {one.node for one in script.flow.origins(file, call.func)}
    ):
        return False
    return any(
        isinstance(inner, ast.Call) and call_name(inner) == "pack_padded_sequence"
        for one in script.flow.origins(file, call.args[1])
        for inner in walk(one.node)
    )


def _by_class(file: File, call: ast.Call) -> bool:
    """Whether it is a mean over the weights of the targets' classes."""
    name = (file.names.called(call) or "").split(".")[-1]
    if name not in CLASS_WEIGHTS:
        return False
    weight = argument(call, "weight", CLASS_WEIGHTS[name])
    return weight is not None and file.code(weight) != "None"


def counted_by(file: File, node: ast.BinOp) -> str:
    """The text of `mask` of `(loss * mask).sum() / mask.sum().clamp(min=1)`; else empty."""
    top, bottom = file.code(node.left), node.right
    while isinstance(node.op, ast.Div) and isinstance(bottom, ast.Call):
        if not isinstance(bottom.func, ast.Attribute):
            break
        if call_name(bottom) == "sum" and not given(bottom) and ".sum(" in top:
            mask = file.code(bottom.func.value)
            return mask if mask in top else ""
        bottom = bottom.func.value
    return ""


def _of_transformers(file: File, script: Script, call: ast.Call) -> bool:
    """`model(input_ids=…, labels=…)`"""
    if not any(keyword.arg == "labels" for keyword in call.keywords):
        return False
    named = {model.name for model in script.models}
    return file.code(call.func) in {*named, "model"} and any(
        "transformers" in one.text and _PER_TOKEN.search(one.text) for one in script.files
    )


RULES = (Rule("RK125", "mean-over-masked", "warning", masked_mean),)
