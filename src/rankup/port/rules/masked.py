"""A loss that is a mean over the targets that count, of which ranks have different numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from .facts import calls, trained_here
from .numbers import loop_text, loss_trains
from .rule import Hit, Rule

# Of these, transformers computes a mean over the labels that are not -100.
_PER_TOKEN = re.compile(
    r"(ForConditionalGeneration|Seq2SeqLM|ForCausalLM|LMHeadModel|ForMaskedLM|ForTokenClassification)\b"
)

# Losses that divide by the weights of the targets' classes, and which argument has these.
_OF_CLASSES = {"CrossEntropyLoss": 0, "NLLLoss": 0, "cross_entropy": 2, "nll_loss": 2}


def masked_mean(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK125: a mean over valid targets, of which ranks have different numbers."""
    if not roles.train_loops:
        return
    if any(
        dotted == "rankup.count" or (dotted.endswith(".count") and dotted.startswith("rankup"))
        for one in roles.sources
        for _, dotted in calls(one, "count")
    ):
        return
    if roles.distributed and any("world_size" in loop_text(loop) for loop in roles.train_loops):
        return
    todo = "rankup.count(int((targets != ignored).sum())) before backward()"
    message = "a mean over valid targets only: ranks have different numbers of them"
    for loss in roles.losses:
        if (
            loss.source is source
            and isinstance(loss.node, cst.Call)
            and (
                (argument(loss.node, "ignore_index") is not None or _by_class(source, loss.node))
                and loss_trains(source, roles, loss.node)
            )
        ):
            yield Hit(loss.node, message, todo)
    for call in source.index.all(cst.Call):
        if _of_transformers(source, roles, call) and trained_here(source, roles, call):
            yield Hit(call, message, "rankup.count((labels != -100).sum()) before backward()")
    for node in source.index.all(cst.BinaryOperation):
        if (
            isinstance(node.operator, cst.Divide)
            and _masked(source, node)
            and trained_here(source, roles, node)
        ):
            yield Hit(node, message, todo)


def _by_class(source: Source, call: cst.Call) -> bool:
    """Whether it is a mean over the weights of the targets' classes."""
    name = (source.index.called(call) or "").split(".")[-1]
    if name not in _OF_CLASSES:
        return False
    weight = argument(call, "weight", _OF_CLASSES[name])
    return weight is not None and source.code(weight) != "None"


def _masked(source: Source, node: cst.BinaryOperation) -> bool:
    """`(loss * mask).sum() / mask.sum()`, and so with weights"""
    top, bottom = source.code(node.left), node.right
    while isinstance(bottom, cst.Call) and isinstance(bottom.func, cst.Attribute):
        if call_name(bottom) == "sum" and not source.index.called(bottom).startswith("numpy."):
            return ".sum(" in top and source.code(bottom.func.value) in top
        bottom = bottom.func.value
    return False


def _of_transformers(source: Source, roles: Roles, call: cst.Call) -> bool:
    """`model(input_ids=…, labels=…)`"""
    if not any(arg.keyword is not None and arg.keyword.value == "labels" for arg in call.args):
        return False
    named = {model.name for model in roles.models}
    return source.code(call.func) in {*named, "model"} and any(
        "transformers" in one.text and _PER_TOKEN.search(one.text) for one in roles.sources
    )


RULES = (Rule("RK125", "mean-over-masked", "warning", masked_mean),)
