"""Ends the loops that train after a few epochs or steps, as if they had come to their end.

What stands behind a training loop, a last evaluation, a last save, runs as always. So it is the
loops that are cut, in the syntax tree, as the script and the modules beside it are compiled.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from ..plan import EPOCHS, STEPS
from .progress import Progress

_EACH, _GO = "__rankup_each__", "__rankup_go__"


class Loops:
    """The two functions that the changed code calls."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._entered: dict[int, tuple[int, int]] = {}

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, until enough has been trained since the first one."""
        began = self._now()
        for item in items:
            yield item
            if self._enough(began):
                return

    def go(self, loop: int) -> bool:
        """Whether a `while` loop, known by its number, goes on."""
        began = self._entered.setdefault(loop, self._now())
        if self._enough(began):
            del self._entered[loop]
            return False
        return True

    def _now(self) -> tuple[int, int]:
        return self._progress.epochs, self._progress.steps

    def _enough(self, began: tuple[int, int]) -> bool:
        epochs, steps = self._now()
        return epochs - began[0] >= EPOCHS or steps - began[1] >= STEPS


class _Cut(ast.NodeTransformer):
    """Puts the calls in; line numbers stay."""

    def __init__(self, first: int) -> None:
        self.loops = first

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(_call(_EACH, node.iter), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        self.loops += 1
        go = _call(_GO, ast.Constant(self.loops))
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, go]), node.test)
        return node


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


class Compiler:
    """Compiles the user's files with their loops cut.

    Args:
        folder: whose files are the user's, absolute and without links.
    """

    def __init__(self, folder: str, loops: Loops) -> None:
        self._folder = folder + "/"
        self._count = 0
        vars(builtins).update({_EACH: loops.each, _GO: loops.go})

    def compile(self, source: bytes | str, path: str) -> CodeType:
        """The code of a file."""
        cut = _Cut(self._count)
        tree = ast.fix_missing_locations(cut.visit(ast.parse(source, path)))
        self._count = cut.loops
        return compile(tree, path, "exec", dont_inherit=True)

    def install(self) -> None:
        """Do so with what is imported from the folder as well, but a runtime lying there."""
        original: Callable[..., CodeType] = SourceFileLoader.source_to_code
        ours = self

        def source_to_code(loader: Any, data: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            name = str(path)
            if name.startswith(ours._folder) and "rankup" not in name[len(ours._folder) :]:
                return ours.compile(data, name)
            return original(loader, data, path, *args, **kwargs)

        SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment, method-assign]
        sys.dont_write_bytecode = True
