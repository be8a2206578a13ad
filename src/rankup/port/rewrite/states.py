"""What a script does with the state of a model that is split: what can be said in other words."""

from __future__ import annotations

import ast

from ...script.flow import argument, given
from .expressions import text_of
from .script import Script


class Unsplit(Exception):  # noqa: N818 - a reason, not an error of the program
    """Why a model is not split.

    Attributes:
        node: where the reason stands.
    """

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node


def clipped_norm(script: Script, call: ast.Call) -> str:
    """The text of the norm that gradients are clipped to.

    Raises:
        Unsplit: it is another norm than the usual one.
    """
    kind = argument(call, "norm_type", 2)
    norm = argument(call, "max_norm", 1)
    usual = kind is None or script.code(kind) in ("2", "2.0")
    if norm is None or not usual or len(given(call)) > 3:
        raise Unsplit(call, "model.clip_grad_norm_(max_norm) of a split model knows one norm alone")
    return script.code(norm)


def saved(script: Script, state: ast.Call) -> tuple[ast.Call, str] | None:
    """The `torch.save` around `model.state_dict()`, and what is saved beside it as arguments.

    It is saved alone, or as "model" of a dictionary of plain values: the same file comes of it.
    """
    holder = script.parents.get(state)
    extra = ""
    whole: ast.AST = state
    if isinstance(holder, ast.Dict):
        whole = holder
        for name, item in zip(holder.keys, holder.values, strict=True):
            key, value = text_of(name), script.code(item)
            if key is None:
                return None
            if item is state:
                if key != "model":
                    return None
            elif key.isidentifier() and key not in _TAKEN and "state_dict" not in value:
                extra += f", {key}={value}"
            else:
                return None
    call = script.parents[whole]
    if not isinstance(call, ast.Call) or script.name(call.func) != "torch.save":
        return None
    if len(given(call)) != 2 or given(call)[0] is not whole or _opened(script, given(call)[1]):
        return None
    return call, extra


def _opened(script: Script, value: ast.expr) -> bool:
    """Whether it is what `with open(…) as f` has opened: a file, where a path is asked for."""
    return isinstance(value, ast.Name) and any(
        item.optional_vars is not None and script.code(item.optional_vars) == value.id
        for one in script.above(value)
        if isinstance(one, ast.With | ast.AsyncWith)
        for item in one.items
    )


_TAKEN = ("model", "optimizer", "path", "copies")  # parameters of save_full_model


def loaded(script: Script, call: ast.Call) -> str | None:
    """The text of PATH in `model.load_state_dict(torch.load(PATH, …))`."""
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Call):
        return None
    load = call.args[0]
    if script.name(load.func) != "torch.load" or not load.args:
        return None
    return script.code(load.args[0])
