"""Losses, devices, and the calls that write or read files."""

from __future__ import annotations

import libcst as cst

from ..naming import words
from .flow import Flow
from .kinds import Role, Site
from .pieces import Origin, argument, call_name
from .trained import role, unique
from .words import last

_CHECKPOINTS = words("torch.save pickle.dump joblib.dump safetensors.torch.save_file")
_CHECKPOINT_METHODS = words("save_pretrained save_model save_weights save_checkpoint")
_LOADS = frozenset({"torch.load"})
_FILE_CALLS = words(
    "save_image imsave savefig imwrite to_csv to_json to_pickle savetxt savez write_image"
)


def find_losses(flow: Flow) -> tuple[Role, ...]:
    """Calls that make or compute a loss: `nn.CrossEntropyLoss()`, `F.nll_loss(…)`."""
    found = []
    for source in flow.sources:
        for call in source.index.all(cst.Call):
            dotted = source.index.called(call)
            name = last(dotted) or call_name(call)
            ours = dotted.startswith("torch.nn")
            if ours and (name.endswith(("Loss", "_loss")) or "cross_entropy" in name):
                found.append(role("loss", Origin(source, call), 1.0))
            elif not dotted and (name.endswith("Loss") or name == "criterion"):
                found.append(role("loss", Origin(source, call), 0.6))
    return unique(found)


def find_devices(flow: Flow) -> tuple[Role, ...]:
    """Where a device is decided on: `torch.device(…)`, `"cuda" if … else "cpu"`."""
    found = []
    for source in flow.sources:
        index = source.index
        inside: set[cst.CSTNode] = set()
        for call in index.all(cst.Call):
            if index.called(call) == "torch.device" or call_name(call) == "current_accelerator":
                found.append(role("device", Origin(source, call), 1.0))
                inside.update(index.within(call, cst.IfExp))
        for choice in index.all(cst.IfExp):
            words = (choice.body, choice.orelse)
            if choice not in inside and any(_is_device(one) for one in words):
                found.append(role("device", Origin(source, choice), 0.9))
        found += [
            role("device", Origin(source, one.node), 0.9)
            for one in index.members(index.module).get("device", ())
            if one.kind == "value" and _is_device(one.node)
        ]
    return unique(found)


def _is_device(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and str(node.raw_value).split(":")[0] in (
        "cuda",
        "mps",
        "xpu",
    )


def find_sites(flow: Flow) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """What is written, and what is loaded."""
    saves, loads = [], []
    for source in flow.sources:
        for call in source.index.all(cst.Call):
            dotted, name = source.index.called(call), call_name(call)
            if dotted in _CHECKPOINTS or (name in _CHECKPOINT_METHODS and not dotted):
                if flow.callee(source, call) is None:
                    saves.append(Site(source, call, dotted or f".{name}", "checkpoint"))
            elif dotted in _LOADS:
                loads.append(Site(source, call, dotted, "load"))
            elif name in _FILE_CALLS and flow.callee(source, call) is None:
                saves.append(Site(source, call, dotted or f".{name}", "file"))
            elif dotted == "builtins.open" and _written(call):
                saves.append(Site(source, call, dotted, "file"))
    return tuple(saves), tuple(loads)


def _written(call: cst.Call) -> bool:
    mode = argument(call, "mode", 1)
    if not isinstance(mode, (cst.SimpleString, cst.ConcatenatedString)):
        return False
    value = mode.evaluated_value
    return value is not None and any(letter in str(value) for letter in "wax+")
