"""The model behind its wrapper: forward, attributes, buffers, order."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Roles
from ..roles.pieces import argument, around_model, call_name
from ..roles.words import last
from ..source import Source
from ..tree import walk
from .facts import anywhere, calls, trained_here, wrapped
from .guards import guard
from .rule import Hit, Rule

# What a module has by itself, or what DistributedDataParallel hands on.
_OF_MODULES = words(
    "train eval parameters named_parameters state_dict load_state_dict zero_grad to cuda cpu half "
    "float double bfloat16 apply children named_children modules named_modules buffers "
    "named_buffers requires_grad_ training forward module register_forward_hook device "
    "register_forward_pre_hook register_full_backward_hook add_module no_sync join share_memory "
    "get_parameter get_submodule type compile set_extra_state get_extra_state "
    "register_backward_hook register_comm_hook require_backward_grad_sync"
)
_SILENT = _OF_MODULES | {"__class__", "__dict__", "config", "save_pretrained"}
_MODULE = re.compile(r"class\s+\w+\([\w., ]*\bModule\b")
_BUFFERS = re.compile(r"register_buffer|BatchNorm|torchvision|timm|transformers|hub\.load")
_FROZEN = re.compile(r"requires_grad\s*=\s*False|requires_grad_\(False\)")


def bypasses_forward(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK131: training past the wrapper: gradients are not put together, without a word."""
    if not roles.distributed:
        return
    around = wrapped(roles)
    for call in source.index.all(cst.Call):
        inner = _past_module(call.func)
        if inner is None or not trained_here(source, roles, call):
            continue
        kinds = set().union(*(around.get(o.node, set()) for o in roles.flow.origins(source, inner)))
        if kinds & {"ddp", "rankup"}:
            yield Hit(
                call,
                "computes past the wrapper: these gradients stay each rank's own, without an error",
                "call the wrapped model itself; rankup.wrap lets model.encode(x) through",
            )


def _past_module(func: cst.BaseExpression) -> cst.BaseExpression | None:
    """`model` of `model.module(x)` and `model.module.encode(x)`."""
    if isinstance(func, cst.Attribute):
        if func.attr.value == "module":
            return func.value
        if func.attr.value in _SILENT or func.attr.value.startswith(("save", "get_", "set_")):
            return None
        value = func.value
        while isinstance(value, cst.Attribute):
            if value.attr.value == "module":
                return value.value
            value = value.value
    return None


def custom_attribute(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK132: names of one's own on a model, which a plain wrapper has not."""
    around = wrapped(roles)
    if roles.distributed and not any("ddp" in kinds for kinds in around.values()):
        return
    models = {one.node for one in roles.models}
    seen: set[str] = set()
    for node in source.index.all(cst.Attribute):
        name = node.attr.value
        if (
            name in _SILENT
            or name.startswith("__")
            or not isinstance(node.value, (cst.Name, cst.Attribute))
        ):
            continue
        if isinstance(node.value, cst.Name) and node.value.value in ("self", "cls"):
            continue
        if source.index.dotted(node):
            continue
        origins = [one for one in roles.flow.origins(source, node.value) if one.node in models]
        if roles.distributed:
            origins = [one for one in origins if one.wrapped() == {"ddp"}]
            origins = [one for one in origins if not _before_wrap(source, roles, node, one)]
        spelled = source.code(node)
        if not origins or spelled in seen or not _own_class(source, roles, origins[0].node, name):
            continue
        seen.add(spelled)
        yield Hit(
            node,
            f"{spelled}: DistributedDataParallel hides attributes and methods of your own",
            "rankup.wrap keeps them, and trains through them",
        )


def _own_class(source: Source, roles: Roles, made: cst.CSTNode, name: str) -> bool:
    """Whether it is an attribute of the model, as far as one can see."""
    for where in roles.sources:
        if made in where.index.parents:
            owner = roles.flow.class_of(where, made)
            if owner is None:
                return True
            return (
                name in where.index.attributes(owner[1])
                or name in owner[0].index.members(owner[1])
                or name in owner[0].index.attributes(owner[1])
            )
    return True


def _before_wrap(source: Source, roles: Roles, node: cst.CSTNode, origin: object) -> bool:
    """Whether a use stands above the wrapping, in the same function."""
    home = source.index.function(node)
    line = source.line_of(node)[0]
    for call in source.index.all(cst.Call):
        if (
            around_model(source, call) == "ddp"
            and source.index.function(call) is home
            and line <= source.last_line_of(call)
        ):
            return True
    return False


def forward_on_one(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK133: a forward through the wrapper on one rank: its buffers are a collective."""
    if not roles.distributed:
        return
    around = wrapped(roles)
    collective = {"ddp", "fsdp"} if _may_have_buffers(roles) else {"fsdp"}
    for call in source.index.all(cst.Call):
        if not isinstance(call.func, (cst.Name, cst.Attribute)) or not call.args:
            continue
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "module":
            continue
        if source.index.called(call):
            continue
        kinds: set[str] = set()
        for origin in roles.flow.origins(source, call.func):
            if origin.node in around:
                kinds |= origin.wrapped()
        if kinds & collective and guard(source, roles, call) in ("rank0", "local"):
            yield Hit(
                call,
                "a forward through the wrapper on one rank: it may wait for the others forever",
                "use the model without its wrapper: model.module(x)",
            )


def _may_have_buffers(roles: Roles) -> bool:
    """Whether DDP may have something to send in a forward: not for a model of the script's own
    that registers no buffer and takes none of those that do."""
    texts = [one.text for one in roles.sources]
    own = any(_MODULE.search(text) for text in texts)
    return not own or any(_BUFFERS.search(text) for text in texts)


def cpu_round_trip(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK134: a model moved to the CPU and back: gradients are no longer put together."""
    models = {one.node for one in roles.models}
    for call, dotted in calls(source, "cpu", "to"):
        if dotted or not isinstance(call.func, cst.Attribute):
            continue
        if call_name(call) == "to":
            given = argument(call, "device", 0)
            if given is None or source.code(given).strip("'\"") != "cpu":
                continue
        elif call.args:
            continue
        receiver = call.func.value
        if not isinstance(receiver, (cst.Name, cst.Attribute)):
            continue
        if not isinstance(source.index.parents.get(call), (cst.Expr, cst.Assign, cst.Attribute)):
            continue
        if _after_training(source, roles, call):
            continue
        if models & {one.node for one in roles.flow.origins(source, receiver)}:
            yield Hit(
                call,
                "moves the model that is trained to the CPU: gradients are no longer exchanged",
                "copy the values: {k: v.cpu() for k, v in model.state_dict().items()}",
            )


def _after_training(source: Source, roles: Roles, call: cst.Call) -> bool:
    """Whether it stands below all training in flat code, or before it."""
    loops = [one for one in source.index.up(call) if isinstance(one, (cst.For, cst.While))]
    return not loops and source.index.function(call) is None


def batch_norm(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK135: statistics of a rank's part of the batch."""
    if roles.distributed or not roles.train_loops:
        return
    if anywhere(roles, "convert_sync_batchnorm"):
        return
    for call in source.index.all(cst.Call):
        dotted = source.index.called(call)
        if dotted.startswith("torch.nn.") and last(dotted).startswith("BatchNorm"):
            yield Hit(
                call,
                "batch norm takes its statistics from a rank's part of each batch",
                "nothing for 16 samples per GPU or more; `rankup port --sync-bn` takes all ranks'",
            )
            return


def wrap_order(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK136: an optimizer of parameters that sharding replaces; freezing after the wrapping."""
    if not roles.distributed:
        return
    for scope in {source.index.function(one) for one in source.index.all(cst.Call)}:
        around: cst.CSTNode = scope or source.module
        lines = {"fsdp": 0, "ddp": 0}
        for call in walk(around):
            if not isinstance(call, cst.Call) or source.index.function(call) is not scope:
                continue
            kind = around_model(source, call)
            if kind in lines and not lines[kind]:
                lines[kind] = source.line_of(call)[0]
        if not any(lines.values()):
            continue
        for optimizer in roles.optimizers:
            if (
                optimizer.source is source
                and optimizer.function is scope
                and lines["fsdp"]
                and source.line_of(optimizer.node)[0] < lines["fsdp"]
            ):
                yield Hit(
                    optimizer.node,
                    "the optimizer is made before the model is sharded: its parameters are "
                    "others afterwards",
                    "shard first, then make the optimizer; or rankup.parallelize",
                )
        if not lines["ddp"]:
            continue
        for node in walk(around):
            if (
                isinstance(node, (cst.Assign, cst.Expr))
                and "requires_grad" in source.code(node)
                and _FROZEN.search(source.code(node))
                and source.line_of(node)[0] > lines["ddp"]
            ):
                yield Hit(
                    node,
                    "freezes parameters after the wrapping: DDP waits for their gradients",
                    "freeze before the model is wrapped",
                )


RULES = (
    Rule("RK131", "bypasses-forward", "error", bypasses_forward),
    Rule("RK132", "custom-attribute", "warning", custom_attribute),
    Rule("RK133", "forward-on-one-rank", "error", forward_on_one),
    Rule("RK134", "cpu-round-trip", "error", cpu_round_trip),
    Rule("RK135", "batch-norm", "warning", batch_norm),
    Rule("RK136", "wrap-order", "error", wrap_order),
)
