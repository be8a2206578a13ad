"""Records of a script: its models, optimizers, loaders, loops and files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from .flow import Flow, is_backward
from .names import Function, children
from .source import File, imports_in

if TYPE_CHECKING:
    from .effects import Helper

LoopNode = ast.For | ast.AsyncFor | ast.While
RoleKind = Literal["model", "optimizer", "scheduler", "train_loader", "eval_loader"]


@dataclass(frozen=True, eq=False)
class _Placed:
    file: File
    node: ast.AST

    @property
    def function(self) -> Function | None:
        return self.file.names.function(self.node)


@dataclass(frozen=True, eq=False)
class Role(_Placed):
    """An expression and the part that it plays.

    Attributes:
        file: the file in which it is made: the script or a module of its folder.
        node: the expression that makes it: a call in most cases; an ast.arg or a name
            where its making cannot be seen.
        confidence: 1.0 is certain, below 0.5 a guess.
    """

    kind: RoleKind
    confidence: float


def unique(roles: Iterable[Role]) -> tuple[Role, ...]:
    """One role for each node, the most certain one."""
    best: dict[ast.AST, Role] = {}
    for one in roles:
        if one.node not in best or best[one.node].confidence < one.confidence:
            best[one.node] = one
    return tuple(best.values())


@dataclass(frozen=True, eq=False)
class Count(_Placed):
    """`total += x` in a loop, or a list that is appended to: a value that grows over the batches.

    Attributes:
        node: the ast.AugAssign or ast.Assign, or the ast.Call of `.append`.
        name: what grows (`total`, `self.total`).
        value: what is added.
    """

    name: str
    value: ast.expr


@dataclass(frozen=True, eq=False)
class Loop(_Placed):
    """A loop over batches.

    Attributes:
        iterated: of a `for`, the expression that is the loader there, without enumerate and bars;
            of a `while`, the argument of its `next(…)`; None where there is neither.
        loaders: the loaders that it may be.
        backwards: the `.backward()` calls that it reaches, with their files; none in evaluation.
        counts: what grows in it.
        source: of a `for`, what is iterated over, also where it is a bar with a name. This and the
            following are found where a script is ported (`rewrite/training.py`).
        batch: names that hold the batch, or what was made of it.
        index: the name that `enumerate` counts with.
        losses: names of what the backward starts from.
        unclear: it may evaluate as well.
    """

    node: LoopNode
    iterated: ast.expr | None
    loaders: tuple[Role, ...]
    backwards: tuple[tuple[File, ast.Call], ...]
    counts: tuple[Count, ...]
    source: ast.expr | None = None
    batch: set[str] = field(default_factory=set)
    index: str | None = None
    losses: set[str] = field(default_factory=set)
    unclear: bool = False

    @property
    def trains(self) -> bool:
        """True where a backward happens in it."""
        return bool(self.backwards)

    @property
    def body(self) -> list[ast.stmt]:
        """The statements of a round."""
        return self.node.body


@dataclass(frozen=True, eq=False)
class Site(_Placed):
    """A call that writes or reads a file.

    Attributes:
        dotted: what is called, `torch.save`; for methods `.save_pretrained`.
        kind: `checkpoint` (torch.save and alike), `load`, `file` (anything else that is written).
        path: the argument that says where to.
        form: `call`: the call writes and is done. `path`: it opens a file that is only written
            to, so that another path does as well. `object`: it opens a file of a format, or one
            that is read, too.
        result: True where the call is worth something but None.
    """

    node: ast.Call
    dotted: str
    kind: Literal["checkpoint", "load", "file"]
    path: ast.expr | None = None
    form: Literal["call", "path", "object"] = "call"
    result: bool = False


@dataclass(frozen=True, eq=False)
class Script:
    """All that `understand` has found.

    Attributes:
        file: the script itself.
        files: the script first, then the modules of its folder that it imports.
        frameworks: of `fastai`, `hf-trainer`, `lightning`, `accelerate`, `keras`, … those that do
            the training here.
        runtimes: of `torch` (torch.distributed), `rankup`, `course` (distributed_utils),
            `deepspeed`, `horovod`, … those that join ranks here.
        also: further modules that a port changes.
    """

    file: File
    files: tuple[File, ...]
    flow: Flow
    frameworks: frozenset[str] = frozenset()
    runtimes: frozenset[str] = frozenset()
    models: tuple[Role, ...] = ()
    optimizers: tuple[Role, ...] = ()
    schedulers: tuple[Role, ...] = ()
    train_loops: tuple[Loop, ...] = ()
    eval_loops: tuple[Loop, ...] = ()
    saves: tuple[Site, ...] = ()
    loads: tuple[Site, ...] = ()
    also: frozenset[File] = frozenset()

    @property
    def trains(self) -> bool:
        """True where the script trains: by a `.backward()`, or by a framework that has it."""
        return bool(self.train_loops) or bool(self.frameworks)

    @cached_property
    def train_loaders(self) -> tuple[Role, ...]:
        """The loaders of the loops that train."""
        return unique(one for loop in self.train_loops for one in loop.loaders)

    @cached_property
    def eval_loaders(self) -> tuple[Role, ...]:
        """The loaders of the loops that evaluate."""
        return unique(one for loop in self.eval_loops for one in loop.loaders)

    @property
    def distributed(self) -> bool:
        """True where the script joins ranks already."""
        return bool(self.runtimes)

    @cached_property
    def to_port(self) -> tuple[File, ...]:
        """The files that a port changes: the script, then the modules that train for it.

        With them the modules through which it imports those, and some others (`also`).
        """
        others = self.files[1:]
        found = set(self.also)
        for file in others:
            calls = file.names.all(ast.Call)
            backwards = [call for call in calls if is_backward(self.flow, file, call)]
            if any(self.comes_to(file, call) for call in backwards):
                found.add(file)
            if file.path.stem != "__init__" and self.imports_of(file, self.file):
                found.add(file)  # what it takes from the script has to come from the port
        if not found:
            return (self.file,)
        imports = {file: set(self.flow.modules_named(file)) for file in self.files}
        while more := {one for one in others if imports[one] & found} - found:
            found |= more
        named = {self.file}  # a package that only runs on the way to its module stays as it is
        while more := {other for one in named for other in imports[one]} - named:
            named |= more
        return (self.file, *(one for one in others if one in found & named))

    def imports_of(self, file: File, module: File) -> list[ast.Import | ast.ImportFrom]:
        """The imports of a file that name a module, where the script comes to them and they run."""
        return [
            node
            for node in imports_in(file)
            if module in self.flow.modules_named_by(file, node)
            and self.comes_to(file, node)
            and not any(
                isinstance(up, ast.If) and "TYPE_CHECKING" in file.code(up.test)
                for up in file.names.up(node)
            )
        ]

    @cached_property
    def reached(self) -> frozenset[ast.AST]:
        """The functions that the script comes to, and the methods of the classes.

        By what it and its modules do as they are imported, and by the functions and classes that
        are named there, in turn.
        """
        found: set[ast.AST] = set()
        waiting: list[tuple[File, ast.AST]] = [(file, file.tree) for file in self.files]
        while waiting:
            file, node = waiting.pop()
            for one in _run_with(file, node, file is self.file):
                named = isinstance(one, ast.Name) or (
                    isinstance(one, ast.Attribute) and file.names.dotted(one)
                )
                definition = self.flow.definition(file, one) if named else None
                if definition is None or definition[1] in found:
                    continue
                where, body = definition
                found.add(body)
                if isinstance(body, ast.ClassDef):  # an instance may be asked for all of it
                    for at, owner in self.flow.family(where, body):
                        found |= set(owner.body)
                        waiting += [(at, method) for method in owner.body]
                else:
                    waiting.append((where, body))
        return frozenset(found)

    def comes_to(self, file: File, node: ast.AST) -> bool:
        """True where the script may run a place in one of its files."""
        function = file.names.function(node)
        return function in self.reached if function is not None else not file.only_started(node)

    @cached_property
    def helpers(self) -> tuple[Helper, ...]:
        """The calls of functions in files that a port does not change, from those that it does."""
        from .effects import find_helpers

        return tuple(find_helpers(self.flow, self.to_port))

    @cached_property
    def _by_node(self) -> dict[ast.AST, list[Role]]:
        found: dict[ast.AST, list[Role]] = {}
        loaders = (*self.train_loaders, *self.eval_loaders)
        made = (*self.models, *self.optimizers, *self.schedulers)
        for role in (*made, *loaders):
            found.setdefault(role.node, []).append(role)
        return found

    def of(self, file: File, node: ast.AST) -> tuple[Role, ...]:
        """The roles that the value of an expression may play, followed to where it is made."""
        return tuple(
            role
            for origin in self.flow.origins(file, node)
            for role in self._by_node.get(origin.node, ())
        )


def _run_with(file: File, node: ast.AST, script: bool) -> Iterator[ast.AST]:
    """The nodes that run with a module or a function, without the bodies of functions in it.

    Of a module that is imported not what it does as a script.
    """
    stack = list(children(node))
    while stack:
        one = stack.pop()
        if isinstance(one, Function | ast.ClassDef):
            stack += one.decorator_list
            stack += one.bases if isinstance(one, ast.ClassDef) else []
            continue
        if not script and file.guards(one):
            continue
        yield one
        stack += children(one)
