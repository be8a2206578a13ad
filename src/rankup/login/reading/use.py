"""One call of something that fetches, as the rules of `rules` look at it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...base.urls import public
from .found import Download, What
from .scopes import Call
from .values import Values
from .worth import Known, Unknown, Value

ABSENT = Known((None,))
# Everybody knows whose `load_dataset` and `AutoModel.from_pretrained` these are.
_NEEDLESS = ("", "datasets", "transformers", "fastai", "vision", "all", "huggingface_hub")


@dataclass(frozen=True)
class Use:
    """A call by its full name.

    Attributes:
        dotted: what is called (`datasets.load_dataset`).
        first: positional arguments to be passed over (of `functools.partial`: one).
    """

    dotted: str
    call: Call
    values: Values
    first: int = 0

    def argument(self, place: int | None, *names: str) -> Value:
        """What an argument is worth, by position or by one of its names; None where not given."""
        for keyword in self.call.node.keywords:
            if keyword.arg in names:
                return self.values.of(keyword.value, self.call.scope)
        arguments = self.call.node.args[self.first :]
        if place is not None:
            if any(isinstance(one, ast.Starred) for one in arguments[: place + 1]):
                return Unknown("the arguments are computed")
            if place < len(arguments):
                return self.values.of(arguments[place], self.call.scope)
        if any(keyword.arg is None for keyword in self.call.node.keywords):
            return Unknown("the arguments are computed")
        return ABSENT

    def given(self, *names: str) -> bool:
        """Whether one of these keywords is there."""
        return any(keyword.arg in names for keyword in self.call.node.keywords)

    def true(self, place: int | None, *names: str) -> bool | None:
        """Whether an argument is true; None where that is not known."""
        found = self.argument(place, *names)
        if isinstance(found, Unknown) or len({bool(one) for one in found.values}) != 1:
            return None
        return bool(found.values[0])

    def text(self, place: int | None, *names: str) -> str:
        """An argument that is one known text; empty where it is not."""
        found = self.argument(place, *names)
        one = found.values[0] if isinstance(found, Known) and len(found.values) == 1 else None
        return one if isinstance(one, str) else ""

    def download(
        self,
        what: What,
        name: Value | str,
        *,
        by_name: bool = False,
        why: str = "",
        config: str = "",
        revision: str = "",
        to: str = "",
    ) -> Iterator[Download]:
        """A download for each thing that `name` may be worth.

        Args:
            by_name: `rankup fetch` puts it where the call looks for it, given its name.
        """
        base = Download(
            self.call.node.lineno,
            self.call.scope.file.path,
            what,
            None,
            self._shown(),
            False,
            config=config,
            revision=revision,
            to=to,
        )
        if isinstance(name, str):
            name = Known((name,))
        if isinstance(name, Unknown):
            yield replace(base, why=name.why)
            return
        for value in name.values:
            if isinstance(value, str) and value:
                shown = public(value) if what == "url" or "://" in value else value
                whole = by_name and not why and shown == value
                yield replace(base, name=shown, known=not why, by_name=whole, why=why)
            else:
                yield replace(base, why="no name is given" if value is None else "it is no text")

    def constant_name(self, place: int, name: str) -> str:
        """`URLs.PETS` of an argument that is a library's constant, else empty.

        A name that is short for it (`resnet34` of `from torchvision.models import *`) counts.
        """
        node = next((k.value for k in self.call.node.keywords if k.arg == name), None)
        arguments = self.call.node.args[self.first :]
        if node is None and place < len(arguments):
            node = arguments[place]
        if not isinstance(node, ast.Attribute | ast.Name):
            return ""
        dotted = self.values.names.dotted(node, self.call.scope)
        if dotted is None or self.values.names.local(dotted) is not None:
            return ""
        parts = dotted.split(".")
        return ".".join(parts[-2:] if isinstance(node, ast.Attribute) else parts[-1:])

    def program(self) -> str:
        """The first word of a command whose other words may be unknown."""
        arguments = self.call.node.args[self.first :]
        node = arguments[0] if arguments else None
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            node = node.elts[0]
        if isinstance(node, ast.JoinedStr) and node.values:
            node = node.values[0]
        while isinstance(node, ast.BinOp):
            node = node.left
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return " ".join(node.value.split()[:1])
        return ""

    def _shown(self) -> str:
        parts = [part for part in self.dotted.split(".") if part not in _NEEDLESS]
        return ".".join(parts if len(parts) <= 3 else parts[-1:])


Rule: TypeAlias = Callable[[Use], Iterator[Download]]


def texts(value: Value) -> tuple[Any, ...]:
    """What is known of a value, as a tuple."""
    return value.values if isinstance(value, Known) else ()
