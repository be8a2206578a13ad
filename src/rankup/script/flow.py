"""Where a value comes from: through names, attributes, parameters, returns and local modules.

The order of statements is not looked at: a name that is bound twice may be either. What cannot be
followed (a parameter that nobody passes, a foreign call) is its own origin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from .modules import Modules
from .names import Binding, Function, Scope, default, kept, opened
from .source import File
from .torch_names import LOADER_WRAPPERS, MODEL_WRAPPERS, RETURNS_SELF

_DEPTH = 25  # steps of following; what is further apart nobody can follow either
_MOST = 40  # origins of one expression
_STEPS = 600  # for one expression, however many callers there are

Path = frozenset[ast.AST]  # the bindings and expressions passed already


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a value may come from.

    Attributes:
        file, node: the expression that makes it, a call in most cases.
        through: the calls that it passed on its way (`DDP(model)`, `model.to(device)`), each with
            its file, the last first.
    """

    file: File
    node: ast.AST
    through: tuple[tuple[File, ast.Call], ...] = ()

    def wrappers(self) -> frozenset[str]:
        """The wrappers around a model: `ddp`, `dp`, `fsdp`, `rankup`, `sync-bn`."""
        found = (model_wrapper(file, call) for file, call in self.through)
        return frozenset(kind for kind in found if kind)


class Flow(Modules):
    """Follows values over the files of one script.

    Attributes:
        run: the functions that calls were found to run (`effects.callee`).
        exact: whether all counts that a name may be: also None, which elsewhere only stands for
            what comes later, and the default of a parameter that some calls leave out.
    """

    exact = False

    def __init__(self, files: Sequence[File], notes: Sequence[str] = ()) -> None:
        super().__init__(files, notes)
        self._known: dict[ast.AST, tuple[Origin, ...]] = {}
        self._known_names: dict[Binding, tuple[Origin, ...]] = {}
        self._possible: dict[tuple[Binding, int], list[Binding]] = {}
        self._budget = 0
        self.run: dict[ast.Call, tuple[File, Function] | None] = {}

    @cached_property
    def exactly(self) -> Flow:
        """The same files, with `exact`."""
        found = copy(self)
        found.exact, found._known, found._known_names = True, {}, {}
        return found

    def class_of(self, file: File, node: ast.AST) -> tuple[File, ast.ClassDef] | None:
        """The class of these files that an expression is an instance of."""
        made = map(self._made_by, self.origins(file, node))
        return next((one for one in made if one is not None), None)

    def _made_by(self, origin: Origin) -> tuple[File, ast.ClassDef] | None:
        """The class whose instance a call makes, or that is named itself."""
        if isinstance(origin.node, ast.ClassDef):
            return origin.file, origin.node
        if not isinstance(origin.node, ast.Call):
            return None
        found = self.definition(origin.file, run_by(origin.node))
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None
        return found[0], found[1]

    def method(self, file: File, receiver: ast.AST, name: str) -> tuple[File, Function] | None:
        """The method of these files that `receiver.name` is, by the class of the receiver."""
        owner = self.class_of(file, receiver)
        return self.member(*owner, name) if owner is not None else None

    def possible(self, file: File, bindings: Sequence[Binding]) -> Sequence[Binding]:
        """Those of a name's bindings that may have given it its value."""
        if len(bindings) < 2:
            return bindings
        key = bindings[0], len(bindings)
        found = self._possible.get(key)
        if found is None:
            kept = {*_wrapped_alone([one.node for one in bindings])}
            found = self._possible[key] = [one for one in bindings if one.node in kept]
        return found

    def calls_of(self, file: File, function: Function) -> Sequence[tuple[File, ast.Call]]:
        """The calls that may have run a function."""
        return self.callers.get(function, ())

    # Values: each of these returns origins; `path` is what was passed already, `left` the depth.

    def origins(self, file: File, node: ast.AST) -> tuple[Origin, ...]:
        """Where the value of an expression may come from; itself where it cannot be followed."""
        if node in self._known:
            return self._known[node]
        # All places of a name in one scope have the same origins.
        names, bound = file.names, list[Binding]()
        if isinstance(node, ast.Name):
            _, bound = names.bindings(node.id, names.scope(node))
        found = self._known_names.get(bound[0]) if bound else None
        if found is None:
            self._budget = _STEPS
            found = tuple(self._follow(file, node, frozenset(), _DEPTH))[:_MOST]
            if bound and all(one.node is not node for one in found):
                self._known_names[bound[0]] = found
        self._known[node] = found
        return found

    def _follow(self, file: File, node: ast.AST, path: Path, left: int) -> list[Origin]:
        if left == 0 or node in path or self._budget == 0:
            return []
        self._budget -= 1
        path |= {node}
        left -= 1
        match node:
            case ast.Name():
                return self._name(file, node, path, left)
            case ast.Attribute():
                return self._attribute(file, node, path, left)
            case ast.Call():
                return self._call(file, node, path, left)
            case ast.IfExp():
                return self._any(file, _wrapped_alone([node.body, node.orelse]), path, left)
            case ast.BoolOp():
                return self._any(file, node.values, path, left)
            case ast.NamedExpr():
                return self._follow(file, node.value, path, left)
            case ast.Subscript():
                return self._subscript(file, node, path, left)
        return [Origin(file, node)]

    def _any(self, file: File, nodes: Iterable[ast.AST], path: Path, left: int) -> list[Origin]:
        return [one for node in nodes for one in self._follow(file, node, path, left)]

    def _name(self, file: File, node: ast.Name, path: Path, left: int) -> list[Origin]:
        scope, bindings = file.names.bindings(node.id, file.names.scope(node))
        if not bindings:
            for star in file.names.stars:
                found = self._of_module(self.place(file, f"{star}.{node.id}"), path, left)
                if found:
                    return found
        return self._bound(file, scope, bindings, path, left) or [Origin(file, node)]

    def _of_module(self, place: tuple[File, str] | None, path: Path, left: int) -> list[Origin]:
        """The origins of a name of another module."""
        if place is None:
            return []
        other, name = place
        bound = other.names.members(other.tree).get(name, [])
        return self._bound(other, other.tree, bound, path, left)

    def _bound(
        self, file: File, scope: Scope, bindings: Sequence[Binding], path: Path, left: int
    ) -> list[Origin]:
        found: list[Origin] = []
        for one in self.possible(file, bindings):
            if len(found) >= _MOST or self._budget == 0:
                break
            if one.target not in path:
                found += self._binding(file, scope, one, path | {one.target}, left)
        return found

    def _binding(
        self, file: File, scope: Scope, one: Binding, path: Path, left: int
    ) -> list[Origin]:
        match one.kind:
            case "value":
                if one.path:
                    return self._unpacked(file, one.node, one.path, path, left)
                return [] if self._skipped(one.node) else self._follow(file, one.node, path, left)
            case "parameter" if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self._parameter(file, scope, one, path, left)
            case "import":
                found = self._of_module(self.place(file, one.dotted), path, left)
                return found or [Origin(file, one.target)]
            case "item":
                return self._iterated(file, one, path, left)
            case "other":
                return []
        return [Origin(file, one.node)]

    def _iterated(self, file: File, one: Binding, path: Path, left: int) -> list[Origin]:
        """The values that a loop binds: `for phase, loader in [("train", a), …]`."""
        for where, rows in self._rows(file, one.node, path, left):
            values = [value for row in rows for value in _part(row, one.path)]
            if values:
                return self._any(where, values, path, left)
        return [Origin(file, one.target)]

    def _rows(
        self, file: File, node: ast.AST, path: Path, left: int
    ) -> list[tuple[File, list[ast.expr]]]:
        """The items of a list, or of `.items()` and `.values()` of a dictionary."""
        found: list[tuple[File, list[ast.expr]]] = []
        for origin in self._follow(file, node, path, left):
            match origin.node:
                case ast.List(elts=elements) | ast.Tuple(elts=elements):
                    found.append((origin.file, list(elements)))
                case ast.Call(func=ast.Attribute(value=value, attr="items" | "values" as method)):
                    found += [
                        (inner.file, _dict_rows(inner.node, pairs=method == "items"))
                        for inner in self._follow(origin.file, value, path, left)
                        if isinstance(inner.node, ast.Dict)
                    ]
        return found

    def _unpacked(
        self, file: File, node: ast.AST, at: tuple[int, ...], path: Path, left: int
    ) -> list[Origin]:
        """Of `a, b = node` what `a` is."""
        found: list[Origin] = []
        for origin in self._follow(file, node, path, left):
            inner = origin.node
            if isinstance(inner, (ast.Tuple, ast.List)) and at[0] < len(inner.elts):
                value = inner.elts[at[0]]
                if len(at) == 1:
                    found += self._follow(origin.file, value, path, left)
                else:
                    found += self._unpacked(origin.file, value, at[1:], path, left)
            else:
                found.append(origin)
        return found

    def _parameter(
        self, file: File, owner: Function, one: Binding, path: Path, left: int
    ) -> list[Origin]:
        parameter = one.node
        assert isinstance(parameter, ast.arg)
        positional = [*owner.args.posonlyargs, *owner.args.args]
        position = positional.index(parameter) if parameter in positional else None
        method = isinstance(file.names.parents[owner], ast.ClassDef)
        if method and position == 0:
            return [Origin(file, parameter)]
        found: list[Origin] = []
        usual = default(owner.args, parameter)
        for where, call in self.calls_of(file, owner):
            shift = 1 if method and not explicit_self(call) else 0
            place = None if position is None else position - shift
            value = argument(call, parameter.arg, place)
            if value is not None:
                found += self._follow(where, value, path, left)
            elif self.exact:
                spread = [*call.args, *(one.arg for one in call.keywords)]
                if usual is None or any(
                    one is None or isinstance(one, ast.Starred) for one in spread
                ):
                    found.append(Origin(file, parameter))
                else:
                    found += self._follow(file, usual, path, left)
        if not found and usual is not None and not self._skipped(usual):
            found = self._follow(file, usual, path, left)
        return found or [Origin(file, parameter)]

    def _skipped(self, value: ast.AST) -> bool:
        """True of None, where it only stands for what a name is given elsewhere."""
        return is_none(value) and not self.exact

    def _attribute(self, file: File, node: ast.Attribute, path: Path, left: int) -> list[Origin]:
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            owner = file.names.enclosing(node, ast.ClassDef)
            if owner is not None:
                found = self._of_class(file, owner, node.attr, path, left)
                return found or [Origin(file, node)]
        if node.attr == "module":  # what is in the wrapper
            return [
                Origin(one.file, one.node, _without_wrappers(one.through))
                for one in self._follow(file, node.value, path, left)
            ]
        if isinstance(node.value, ast.Name):
            place = self.place(file, file.names.dotted(node))
            if place is not None:
                return self._of_module(place, path, left) or [Origin(file, node)]
            for origin in self._follow(file, node.value, path, left):
                values = self._of_instance(origin, node.attr, path, left)
                if values:
                    return values
        return [Origin(file, node)]

    def _of_instance(self, origin: Origin, name: str, path: Path, left: int) -> list[Origin]:
        made = self._made_by(origin)
        if made is None:
            return []
        call = origin.node
        if isinstance(call, ast.Call) and self.member(*made, "__init__") is None:  # a dataclass
            value = argument(call, name)
            if value is not None:
                return self._follow(origin.file, value, path, left)
        return self._of_class(*made, name, path, left)

    def _of_class(
        self, file: File, owner: ast.ClassDef, name: str, path: Path, left: int
    ) -> list[Origin]:
        found: list[Origin] = []
        for where, at in self.family(file, owner):
            own = [one for one in where.names.members(at).get(name, ()) if one.kind == "value"]
            for one in self.possible(where, where.names.attributes(at).get(name, own)):
                if one.target not in path:
                    scope = where.names.scope(one.target)
                    found += self._binding(where, scope, one, path | {one.target}, left)
        return found

    def _call(self, file: File, node: ast.Call, path: Path, left: int) -> list[Origin]:
        passed = passed_through(file, node)
        if passed is not None:
            return [
                Origin(one.file, one.node, (*one.through, (file, node)))
                for value in passed
                for one in self._follow(file, value, path, left)
            ]
        callee = self.definition(file, run_by(node))
        if callee is not None and not isinstance(callee[1], ast.ClassDef):
            found = self._any(callee[0], returned(callee[1]), path, left)
            # `return getattr(module, name)()`: each call of it makes something else.
            if found and not any(_by_its_name(one.node) for one in found):
                return found
        return [Origin(file, node)]

    def _subscript(self, file: File, node: ast.Subscript, path: Path, left: int) -> list[Origin]:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found: list[Origin] = []
        for origin in self._follow(file, node.value, path, left):
            found += self._any(origin.file, _entries(origin.node, key), path, left)
        return found or [Origin(file, node)]


def call_name(call: ast.Call) -> str:
    """The last word of what is called: `step` of `optimizer.step()`."""
    func = call.func
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def run_by(call: ast.Call) -> ast.expr:
    """Return what a call runs: `f` of `f(x)` and of `rankup.rank0_first(f, x)`."""
    return call.args[0] if call_name(call) == "rank0_first" and call.args else call.func


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by keyword or position; None where it is not given in a way one can see."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or not 0 <= position < len(call.args):
        return None
    if any(isinstance(one, ast.Starred) for one in call.args[: position + 1]):
        return None
    return call.args[position]


def receiver(call: ast.Call) -> ast.expr | None:
    """`model` of `model.eval()`; None of a call of a plain name."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def method_calls(nodes: Iterable[ast.AST], *names: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of methods of these names among some nodes, each with what it is called on."""
    for one in nodes:
        match one:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in names:
                yield one, owner


def is_backward(flow: Flow, file: File, call: ast.Call) -> bool:
    """`loss.backward()`, `accelerator.backward(loss)`, `torch.autograd.backward(loss)`.

    Not a method `backward` of a class of these files, whose own calls count, nor what a function
    of torch.autograd does in its own.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return False
    owner = call.func.value
    if isinstance(owner, ast.Call) and call_name(owner) == "super":
        return False
    if isinstance(owner, ast.Name) and owner.id in ("self", "ctx"):
        return False
    around = file.names.enclosing(call, ast.ClassDef)
    if around is not None and _differentiates(flow, file, around):
        return False
    return "backward" not in flow.methods or flow.method(file, owner, "backward") is None


def _differentiates(flow: Flow, file: File, owner: ast.ClassDef) -> bool:
    """True of a `torch.autograd.Function`, which says itself how it is differentiated."""
    return any(
        base.startswith("torch.autograd.") and base.endswith("Function")
        for base in flow.bases(file, owner)
    )


def given(call: ast.Call) -> list[ast.expr]:
    """The values of all arguments of a call, by position and by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def first_argument(call: ast.Call) -> ast.expr | None:
    """The value of a call's first argument, by position or by keyword."""
    return next(iter(given(call)), None)


def returned(function: Function) -> list[ast.expr]:
    """The values that a function returns at its own level."""
    returns = kept(function, opened, (ast.Return,))
    return [one.value for one in returns if one.value is not None]


def model_wrapper(file: File, call: ast.Call) -> str:
    """The kind of wrapper that a call puts around a model, or nothing."""
    name = call_name(call)
    if name in MODEL_WRAPPERS:
        return MODEL_WRAPPERS[name]
    dotted = file.names.called(call)
    return "rankup" if name == "wrap" and (dotted.startswith("rankup") or not dotted) else ""


def passed_through(file: File, node: ast.Call) -> list[ast.expr] | None:
    """The arguments that a call returns as they are or wrapped; None where it makes another."""
    func, name = node.func, call_name(node)
    if isinstance(func, ast.Attribute) and name in RETURNS_SELF and not file.names.dotted(func):
        return [func.value]
    if file.names.called(node) == "torch.compile" and node.args:
        return [node.args[0]]
    if model_wrapper(file, node):
        first = argument(node, "module", 0)
        return None if first is None else [first]
    if name in LOADER_WRAPPERS and node.args:
        if name == "log_every" or not isinstance(func, ast.Attribute):
            several = name in ("zip", "chain")
            chosen = node.args if several else node.args[:1]
            return [one for one in chosen if not isinstance(one, ast.Starred)]
        if file.names.dotted(func):
            return [node.args[0]]
    return None


def literal(node: ast.AST | None) -> object:
    """The value of a literal; None where it is none."""
    return node.value if isinstance(node, ast.Constant) else None


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def explicit_self(call: ast.Call) -> bool:
    """True of `Base.__init__(self, …)`, with the instance among its arguments.

    Of `hook.on_epoch(self, …)` that is another's.
    """
    if not call.args or not isinstance(call.args[0], ast.Name) or call.args[0].id != "self":
        return False
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name[:1].isupper() or owner is None


def _by_its_name(node: ast.AST) -> bool:
    """True of a call of what is looked up: `getattr(module, name)(…)`."""
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Call) and call_name(func) == "getattr"


def _without_wrappers(
    through: tuple[tuple[File, ast.Call], ...],
) -> tuple[tuple[File, ast.Call], ...]:
    return tuple((file, call) for file, call in through if not model_wrapper(file, call))


def _wrapped_alone(nodes: Sequence[ast.AST]) -> list[ast.AST]:
    """Of `model.module if ddp else model`, in either form, the first alone."""
    inner = {
        ast.dump(one.value)
        for one in nodes
        if isinstance(one, ast.Attribute) and one.attr == "module"
    }
    return [one for one in nodes if not inner or ast.dump(one) not in inner]


def _dict_rows(node: ast.Dict, pairs: bool) -> list[ast.expr]:
    if not pairs:
        return list(node.values)
    return [
        ast.Tuple([key, value], ast.Load())
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None
    ]


def _part(row: ast.expr, path: tuple[int, ...]) -> list[ast.expr]:
    """The part of a row that a name is bound to: at `(1,)` of `("train", loader)` the loader."""
    for position in path:
        if not isinstance(row, (ast.Tuple, ast.List)) or position >= len(row.elts):
            return []
        row = row.elts[position]
    return [row]


def _entries(node: ast.AST, key: object) -> list[ast.expr]:
    """The values of a literal container that a key may mean; all where the key is not known."""
    match node:
        case ast.Dict():
            pairs = [
                (name, value)
                for name, value in zip(node.keys, node.values, strict=True)
                if name is not None
            ]
            exact = [
                value
                for name, value in pairs
                if key is not None and isinstance(name, ast.Constant) and name.value == key
            ]
            return exact or [value for _, value in pairs]
        case ast.DictComp():
            return [node.value]
        case ast.ListComp():
            return [node.elt]
        case ast.List() | ast.Tuple():
            if isinstance(key, int) and -len(node.elts) <= key < len(node.elts):
                return [node.elts[key]]
            return list(node.elts)
    return []
