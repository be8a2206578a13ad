"""A user's function that builds a model, found by its name. torch only where it is called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.errors import EXIT_BAD_INPUT, UserError, nearest


def function(target: str) -> Callable[[], Any]:
    """The function that `module:name` or `file.py:name` names.

    Raises:
        UserError: there is none, it cannot be imported, or it takes arguments; and what it raises
            where it does not work on meta tensors.
    """
    return _checked(_function(target), target)


def _function(target: str) -> Callable[[], Any]:
    where, _, name = target.rpartition(":")
    module = _imported(where)
    found = getattr(module, name, None)
    if not callable(found):
        own = [
            n
            for n, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        hint = nearest(name, own) if own else "it defines none"
        raise UserError(f"{where} has no function {name!r}; {hint}")
    try:
        inspect.signature(found).bind()
    except TypeError:
        takes = inspect.signature(found)
        raise UserError(
            f"{target} takes arguments {takes}, and is called without any; write a function that "
            f"needs none: def build_model(): return {name}(...)"
        ) from None
    except ValueError:  # a built-in that does not say what it takes
        pass
    return found


def _imported(where: str) -> Any:
    path = Path(where)
    folder = path.parent if where.endswith(".py") else Path()
    sys.path.insert(0, os.path.abspath(folder))
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        if not path.is_file():
            raise UserError(f"{where} does not exist; give a file, or module:build_model")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # as an import does: its dataclasses look it up
        spec.loader.exec_module(module)
        return module
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(
            f"{where} ended the program while it was imported ({error}); put what it runs under "
            f"`if __name__ == '__main__':`"
        ) from None
    except ModuleNotFoundError as error:
        if error.name == where:
            raise UserError(
                f"no module {where!r} in {Path.cwd()} or in this Python; give module:function or "
                f"file.py:function"
            ) from None
        raise UserError(f"{where} cannot be imported: {error}") from None
    except Exception as error:
        raise UserError(f"{where} cannot be imported: {type(error).__name__}: {error}") from None


def _checked(function: Callable[[], Any], target: str) -> Callable[[], Any]:
    """The function, its failures in plain words."""

    def build() -> Any:
        from torch import nn

        try:
            model = function()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{target} does not work on meta tensors, which have shapes and no values "
                f"({type(error).__name__}: {error}); a model is only built there: leave out "
                f"loading weights, .item(), .cuda() and .to(device)"
            ) from None
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{target} returned {type(model).__name__}; a function that returns the model, "
                f"an nn.Module, is needed"
            )
        return model

    return build


def main() -> int:
    """Write the name and shape of each parameter of a model, what is tied once, as JSON to a file.

    In a process of its own, as the command `named TARGET FILE`: what a user's module prints, and
    what it does to torch, stays there.
    """
    target, file = sys.argv[1:]
    try:
        build = function(target)
        from ..initial import on_meta  # torch takes seconds: a name that is wrong is said before

        model = on_meta(build, 0)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    found = [[name, list(parameter.shape)] for name, parameter in model.named_parameters()]
    Path(file).write_text(json.dumps(found), encoding="utf-8")
    return 0
