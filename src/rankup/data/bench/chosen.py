"""The transform that is measured: as it was spelled, or one that suits the samples."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError, nearest
from ..transforms import Transform

_FORM = "module:function, or photos:RandomResizedCrop(224)"


class Raised(Exception):  # noqa: N818 - what it carries is the error
    """The user's code raised `__cause__`, which is shown with its traceback."""


@dataclass(frozen=True)
class Spelled:
    """`module:name`, or `module:name(values)`."""

    module: str
    name: str
    called: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parse(text: str) -> Spelled:
    """Take a spelling apart; values are literals, and nothing is evaluated.

    Raises:
        UserError: it is none.
    """
    module, colon, rest = text.partition(":")
    if not colon or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"--transform {text!r} is not understood; it should be {_FORM}")
    try:
        node = ast.parse(rest.strip(), mode="eval").body
        called = isinstance(node, ast.Call)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(node, ast.Call):
            args = tuple(ast.literal_eval(one) for one in node.args)
            kwargs = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
            if any(one.arg is None for one in node.keywords):
                raise ValueError("**")
            node = node.func
        name = ast.unparse(node)
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(name)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(
            f"--transform {text!r} is not understood; it should be {_FORM}, with plain values in "
            f"the brackets: numbers, strings, True, None"
        ) from error
    return Spelled(module, name, called, args, kwargs)


def load(text: str) -> Transform:
    """The transform of a spelling; modules are looked for in the current folder, too.

    Raises:
        UserError: there is no such module or name, or what it names is no transform.
        Raised: the module raised as it was imported, or what was called in it.
    """
    spelled = parse(text)
    found: Any = _module(spelled.module)
    for part in spelled.name.split("."):
        if not hasattr(found, part):
            known = [name for name in dir(found) if not name.startswith("_")]
            raise UserError(
                f"--transform {text}: there is no {part!r} in {spelled.module}; "
                f"{nearest(part, known)}"
            )
        found = getattr(found, part)
    if spelled.called:
        try:
            found = found(*spelled.args, **spelled.kwargs)
        except Exception as error:
            if isinstance(error, TypeError) and error.__traceback__ is not None:
                if error.__traceback__.tb_next is None:  # the call itself, not what it called
                    raise UserError(f"--transform {text}: {error}") from error
            elif isinstance(error, UserError):
                raise
            raise Raised from error
    elif inspect.isclass(found):
        raise UserError(
            f"--transform {text} is a class; write what it is made with: {text}(...), as in "
            f"photos:RandomResizedCrop(224)"
        )
    if not callable(found):
        raise UserError(
            f"--transform {text} is {type(found).__name__}; it should be a function of (bytes, rng)"
        )
    return found  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    if name == "photos":
        return importlib.import_module("rankup.data.photos")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does; stays, since what is imported may import more
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"--transform: there is no module {error.name!r} in {here}, and none is installed"
            ) from error
        raise Raised from error
    except Exception as error:
        raise Raised from error
