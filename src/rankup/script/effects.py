"""Losses, devices, and the calls that write or read files."""

from __future__ import annotations

import ast

from .flow import Flow, Origin, argument, call_name, literal
from .models import role, unique
from .names import walk
from .roles import Role, Site
from .torch_names import last, words

_CHECKPOINTS = words("torch.save pickle.dump joblib.dump safetensors.torch.save_file")
_CHECKPOINT_METHODS = words("save_pretrained save_model save_weights save_checkpoint")
_LOADS = frozenset({"torch.load"})
_FILE_FUNCTIONS = words("numpy.save numpy.savez_compressed scipy.io.savemat")
_FILE_CALLS = words(
    "save_image imsave savefig imwrite to_csv to_json to_pickle savetxt savez write_image"
)


def find_losses(flow: Flow) -> tuple[Role, ...]:
    """Calls that make or compute a loss: `nn.CrossEntropyLoss()`, `F.nll_loss(…)`."""
    found = []
    for file in flow.files:
        for call in file.names.all(ast.Call):
            dotted = file.names.called(call)
            name = last(dotted) or call_name(call)
            ours = dotted.startswith("torch.nn")
            if ours and (name.endswith(("Loss", "_loss")) or "cross_entropy" in name):
                found.append(role("loss", Origin(file, call), 1.0))
            elif not dotted and (name.endswith("Loss") or name == "criterion"):
                found.append(role("loss", Origin(file, call), 0.6))
    return unique(found)


def find_devices(flow: Flow) -> tuple[Role, ...]:
    """Where a device is decided on: `torch.device(…)`, `"cuda" if … else "cpu"`."""
    found = []
    for file in flow.files:
        names = file.names
        inside: set[ast.AST] = set()
        for call in names.all(ast.Call):
            if names.called(call) == "torch.device" or call_name(call) == "current_accelerator":
                found.append(role("device", Origin(file, call), 1.0))
                inside.update(one for one in walk(call) if isinstance(one, ast.IfExp))
        for choice in names.all(ast.IfExp):
            words = (choice.body, choice.orelse)
            if choice not in inside and any(_is_device(one) for one in words):
                found.append(role("device", Origin(file, choice), 0.9))
        found += [
            role("device", Origin(file, one.node), 0.9)
            for one in names.members(names.tree).get("device", ())
            if one.kind == "value" and _is_device(one.node)
        ]
    return unique(found)


def _is_device(node: ast.AST) -> bool:
    value = literal(node)
    return isinstance(value, str) and value.split(":")[0] in ("cuda", "mps", "xpu")


def find_sites(flow: Flow) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """The calls that write files, and those that load checkpoints."""
    saves, loads = [], []
    for file in flow.files:
        for call in file.names.all(ast.Call):
            dotted, name = file.names.called(call), call_name(call)
            if dotted in _CHECKPOINTS or (name in _CHECKPOINT_METHODS and not dotted):
                if flow.callee(file, call) is None:
                    saves.append(Site(file, call, dotted or f".{name}", "checkpoint"))
            elif dotted in _LOADS:
                loads.append(Site(file, call, dotted, "load"))
            elif (name in _FILE_CALLS or dotted in _FILE_FUNCTIONS) and flow.callee(
                file, call
            ) is None:
                saves.append(Site(file, call, dotted or f".{name}", "file"))
            elif dotted == "builtins.open" and _written(call):
                saves.append(Site(file, call, dotted, "file"))
    return tuple(saves), tuple(loads)


def _written(call: ast.Call) -> bool:
    mode = argument(call, "mode", 1)
    value = literal(mode)
    return isinstance(value, str) and any(letter in value for letter in "wax+")
