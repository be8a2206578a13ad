"""What a script does with the state of a model that is split: what can be said in other words."""

from __future__ import annotations

import libcst as cst

from .script import Script


class Unsplit(Exception):  # noqa: N818 - a reason, not an error of the program
    """Why a model is not split.

    Attributes:
        node: where the reason stands.
    """

    def __init__(self, node: cst.CSTNode, why: str) -> None:
        super().__init__(why)
        self.node = node


def clipped_norm(script: Script, call: cst.Call) -> str:
    """The text of the norm that gradients are clipped to.

    Raises:
        Unsplit: it is another norm than the usual one.
    """
    kind = script.argument(call, "norm_type", 2)
    norm = script.argument(call, "max_norm", 1)
    usual = kind is None or script.code(kind.value) in ("2", "2.0")
    if norm is None or not usual or len(call.args) > 3:
        raise Unsplit(call, "model.clip_grad_norm_(max_norm) of a split model knows one norm alone")
    return script.code(norm.value)


def saved(script: Script, state: cst.Call) -> tuple[cst.Call, str] | None:
    """The `torch.save` around `model.state_dict()`, and what is saved beside it as arguments.

    It is saved alone, or as "model" of a dictionary of plain values: the same file comes of it.
    """
    holder = script.parents.get(state)
    extra = ""
    if isinstance(holder, cst.DictElement):
        table = script.parents.get(holder)
        assert isinstance(table, cst.Dict)
        for item in table.elements:
            if not isinstance(item, cst.DictElement) or not isinstance(item.key, cst.SimpleString):
                return None
            key, value = str(item.key.raw_value), script.code(item.value)
            if item is holder:
                if key != "model":
                    return None
            elif key.isidentifier() and key not in _TAKEN and "state_dict" not in value:
                extra += f", {key}={value}"
            else:
                return None
        holder = script.parents.get(table)
    call = script.parents.get(holder) if isinstance(holder, cst.Arg) else None
    if not isinstance(call, cst.Call) or script.name(call.func) != "torch.save":
        return None
    if len(call.args) != 2 or call.args[0] is not holder or _opened(script, call.args[1].value):
        return None
    return call, extra


def _opened(script: Script, value: cst.BaseExpression) -> bool:
    """Whether it is what `with open(…) as f` has opened: a file, where a path is asked for."""
    return isinstance(value, cst.Name) and any(
        item.asname is not None and script.code(item.asname.name) == value.value
        for one in script.above(value)
        if isinstance(one, cst.With)
        for item in one.items
    )


_TAKEN = ("model", "optimizer", "path", "copies")  # parameters of save_full_model


def loaded(script: Script, call: cst.Call) -> str | None:
    """The text of PATH in `model.load_state_dict(torch.load(PATH, …))`."""
    if len(call.args) != 1 or not isinstance(call.args[0].value, cst.Call):
        return None
    load = call.args[0].value
    if script.name(load.func) != "torch.load" or not load.args or load.args[0].keyword is not None:
        return None
    return script.code(load.args[0].value)
