"""Parents, scopes and bindings: what each name of a file may mean."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeVar, cast

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Scope = (
    ast.Module
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.Lambda
    | (Comprehension)
)
Kind = Literal["import", "value", "item", "entered", "parameter", "function", "class", "other"]
N = TypeVar("N", bound=ast.AST)

_BUILTINS = frozenset(dir(builtins))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Operators and contexts, which are shared between nodes: `ast` has one object for each of them.
_NO_PLACE = frozenset({"ctx", "op", "ops"})
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, *COMPREHENSIONS)
_APART = (*_SCOPES, ast.comprehension)  # whose children are not all of one scope
_BINDS_NOTHING = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.keyword)  # most nodes


@dataclass(frozen=True, eq=False)
class Binding:
    """One way in which a name gets its value.

    Attributes:
        kind: `value`: that of the expression `node`, or its item at `path` where it is unpacked.
            `item`: one item of iterating over `node`. `entered`: what `with node as` gives.
            `parameter`: `node` is the `ast.arg`. `function`, `class`: `node` is the definition.
            `import`: `dotted` is where it is from. `other`: `except … as`, `del`, `match`, `+=`.
        target: the node that names it.
    """

    kind: Kind
    target: ast.AST
    node: ast.AST
    path: tuple[int, ...] = ()
    dotted: str = ""


@dataclass
class _Bound:
    names: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)  # global and nonlocal


class Names:
    """The names of one file.

    Attributes:
        parents: the node around each node but the module.
        imported: dotted names of what is imported; `from a import b` gives `a` and `a.b`.
        stars: the modules that are imported by `from module import *`.
        starred: what names mean that come along with such an import of a file of the repository,
            which imports them itself: `torch`.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.imported: list[str] = []
        self.stars: list[str] = []
        self.starred: dict[str, str] = {}
        self._scopes: dict[ast.AST, Scope] = {}
        self._bound: dict[Scope, _Bound] = {tree: _Bound()}
        self._attributes: dict[ast.ClassDef, dict[str, list[Binding]]] = {}
        self._by_type: dict[type, list[ast.AST]] = {}
        self._dotted: dict[ast.AST, str] = {}
        self._function: dict[ast.AST, Function | None] = {}
        self._first: dict[tuple[Binding | None, int, tuple[Kind, ...]], Binding | None] = {}
        self._walk()

    def all(self, kind: type[N]) -> list[N]:
        """All nodes of a type, in the order of the text."""
        return cast("list[N]", self._by_type.get(kind, []))

    @property
    def functions(self) -> list[Function]:
        """All functions and methods, in the order of the text."""
        found: list[Function] = [*self.all(ast.FunctionDef), *self.all(ast.AsyncFunctionDef)]
        return sorted(found, key=lambda one: one.lineno)

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the nearest first."""
        at = self.parents.get(node)
        while at is not None:
            yield at
            at = self.parents.get(at)

    def enclosing(self, node: ast.AST, kind: type[N]) -> N | None:
        """The nearest node around a node of this type."""
        return next((one for one in self.up(node) if isinstance(one, kind)), None)

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """The list of statements in which one stands; empty for what is no statement."""
        parent = self.parents.get(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return []

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        way = []
        at: ast.AST | None = node
        while at is not None and at not in self._function:
            way.append(at)
            at = self.parents.get(at)
            if isinstance(at, Function):
                self._function |= dict.fromkeys(way, at)
                return at
        found = self._function[at] if at is not None else None
        self._function |= dict.fromkeys(way, found)
        return found

    def inside(self, node: ast.AST, other: ast.AST) -> bool:
        """True where `node` is `other` or lies in it."""
        return node is other or any(one is other for one in self.up(node))

    def statement(self, node: ast.AST) -> ast.AST:
        """The statement that a node is or stands in."""
        return node if isinstance(node, ast.stmt) else self.enclosing(node, ast.stmt) or node

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which a node looks for its names first."""
        return self._scopes.get(node, self.tree)

    def bindings(self, name: str, scope: Scope) -> tuple[Scope, list[Binding]]:
        """The bindings of a name as seen from a scope, and the scope that holds them."""
        at = scope
        while True:
            bound = self._bound[at]
            visible = at is scope or not isinstance(at, ast.ClassDef)
            if name in bound.names and name not in bound.elsewhere and visible:
                return at, bound.names[name]
            if isinstance(at, ast.Module):
                return at, []
            at = self._scopes[at]

    def first_of(self, bindings: Sequence[Binding], *kinds: Kind) -> Binding | None:
        """The first of a name's bindings that is of some kinds; sought once for all its places."""
        key = bindings[0] if bindings else None, len(bindings), kinds
        if key not in self._first:
            self._first[key] = next((one for one in bindings if one.kind in kinds), None)
        return self._first[key]

    @property
    def scopes(self) -> list[Scope]:
        """All scopes: the module, its classes and functions, and comprehensions."""
        return list(self._bound)

    def members(self, scope: Scope) -> dict[str, list[Binding]]:
        """The names bound in a scope: a module's globals, a class's methods."""
        return self._bound[scope].names

    def attributes(self, owner: ast.ClassDef) -> dict[str, list[Binding]]:
        """The bindings of each `self.NAME` anywhere in a class."""
        return self._attributes.get(owner, {})

    def dotted(self, node: ast.AST) -> str:
        """Where a name, an attribute or an import is from: `torch.optim.Adam`, `builtins.print`.

        Empty where it is neither of an imported module nor a builtin.
        """
        if self.stars and not isinstance(node, ast.alias):  # names may get others
            return self._find_dotted(node)
        if node not in self._dotted:
            self._dotted[node] = self._find_dotted(node)
        return self._dotted[node]

    def _find_dotted(self, node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        _, found = self.bindings(node.id, self.scope(node))
        imported = self.first_of(found, "import")
        if imported is not None:
            return imported.dotted
        if found:
            return ""
        if node.id in self.starred:
            return self.starred[node.id]
        if node.id in _BUILTINS:
            return f"builtins.{node.id}"
        return f"{self.stars[-1]}.{node.id}" if self.stars else ""

    @property
    def handed_on(self) -> dict[str, str]:
        """Return what the imported names mean that `from this import *` gives to another file."""
        found = dict(self.starred)
        for name, bindings in self.members(self.tree).items():
            for one in bindings:
                if one.kind == "import" and one.dotted[:1] != "." and name[:1] != "_":
                    found[name] = one.dotted
        return found

    def called(self, call: ast.Call) -> str:
        """`dotted` of what a call calls."""
        known = None if self.stars else self._dotted.get(call.func)
        return self.dotted(call.func) if known is None else known

    def _walk(self) -> None:
        for node in walk(self.tree):
            scope = self.scope(node)
            self._by_type.setdefault(type(node), []).append(node)
            if isinstance(node, _SCOPES):
                self._bound[node] = _Bound()
            if not isinstance(node, _BINDS_NOTHING):
                self._bind(node, scope)
            parts = isinstance(node, _APART)
            for child in children(node):
                self.parents[child] = node
                self._scopes[child] = self._inner(node, child, scope) if parts else scope

    def _inner(self, node: ast.AST, child: ast.AST, scope: Scope) -> Scope:
        """The scope of a node's child.

        Decorators, defaults, annotations and base classes are evaluated in the scope around a
        definition, as is the first iterable of a comprehension.
        """
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return node if isinstance(child, ast.stmt) else scope
            case ast.Lambda():
                return node if child is node.body else scope
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return node
            case ast.comprehension() if child is node.iter:
                around = cast("Comprehension", self.parents[node])
                return self._scopes[around] if node is around.generators[0] else scope
        return scope

    def _put(self, scope: Scope, name: str, binding: Binding) -> None:
        bound = self._bound[scope]
        if name in bound.elsewhere:
            bound = self._bound[self.tree]
        bound.names.setdefault(name, []).append(binding)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._put(scope, node.name, Binding("function", node, node))
                self._parameters(node)
            case ast.Lambda():
                self._parameters(node)
            case ast.ClassDef():
                self._put(scope, node.name, Binding("class", node, node))
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, "value", node.value, scope)
            case ast.AnnAssign() if node.value is not None:
                self._assign(node.target, "value", node.value, scope)
            case ast.AugAssign():
                self._assign(node.target, "other", node.value, scope)
            case ast.NamedExpr():
                self._assign(node.target, "value", node.value, self._around(scope))
            case ast.For() | ast.AsyncFor():
                self._assign(node.target, "item", node.iter, scope)
            case ast.comprehension():
                self._assign(node.target, "item", node.iter, scope)
            case ast.withitem() if node.optional_vars is not None:
                self._assign(node.optional_vars, "entered", node.context_expr, scope)
            case ast.ExceptHandler() if node.name is not None:
                self._put(scope, node.name, Binding("other", node, node))
            case ast.MatchAs() | ast.MatchStar() if node.name is not None:
                self._put(scope, node.name, Binding("other", node, node))
            case ast.Delete():
                for target in node.targets:
                    self._assign(target, "other", target, scope)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Global() | ast.Nonlocal():
                self._bound[scope].elsewhere.update(node.names)

    def _around(self, scope: Scope) -> Scope:
        """The scope that `:=` binds in: the one around comprehensions."""
        while isinstance(scope, COMPREHENSIONS):
            scope = self._scopes[scope]
        return scope

    def _parameters(self, owner: Function | ast.Lambda) -> None:
        for arg in parameters(owner.args):
            self._put(owner, arg.arg, Binding("parameter", arg, arg))

    def _assign(
        self,
        target: ast.AST,
        kind: Kind,
        value: ast.AST,
        scope: Scope,
        path: tuple[int, ...] = (),
    ) -> None:
        match target:
            case ast.Name():
                self._put(scope, target.id, Binding(kind, target, value, path))
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                owner = self._owner(scope)
                if owner is not None:
                    attributes = self._attributes.setdefault(owner, {})
                    binding = Binding(kind, target, value, path)
                    attributes.setdefault(target.attr, []).append(binding)
            case ast.Tuple() | ast.List():
                for position, element in enumerate(target.elts):
                    self._assign(element, kind, value, scope, (*path, position))
            case ast.Starred():
                self._assign(target.value, "other", value, scope)

    def _owner(self, scope: Scope) -> ast.ClassDef | None:
        at = scope
        while not isinstance(at, ast.Module):
            if isinstance(at, ast.ClassDef):
                return at
            at = self._scopes[at]
        return None

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = alias.name
                self.imported.append(dotted)
                first = dotted.split(".")[0]
                name, means = (alias.asname, dotted) if alias.asname else (first, first)
                self._put(scope, name, Binding("import", alias, node, (), means))
                self._dotted[alias] = means
            return
        base = "." * node.level + (node.module or "")
        self.imported.append(base)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
                continue
            dotted = f"{base}{alias.name}" if base.endswith(".") else f"{base}.{alias.name}"
            self.imported.append(dotted)
            name = alias.asname or alias.name
            self._put(scope, name, Binding("import", alias, node, (), dotted))
            self._dotted[alias] = dotted


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes directly below one, in the order of the text; no operators and no contexts.

    They are kept with the node: trees are not changed, and each is walked many times.
    """
    known = node.__dict__.get("_below")
    if known is None:
        known = node.__dict__["_below"] = tuple(_below(node))
    return known  # type: ignore[no-any-return]


def _below(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    if isinstance(node, ast.IfExp):
        return [node.body, node.test, node.orelse]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [one for pair in pairs for one in pair if one is not None]
    for name in node._fields:
        if name in _NO_PLACE:
            continue
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
    if isinstance(node, Function | ast.ClassDef):
        above = node.decorator_list
        return [*above, *(one for one in found if one not in above)]
    return found


def walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """Nodes and all below them, in the order of the text; kept with a node, as its children are."""
    return chain.from_iterable(map(preorder, nodes))


def preorder(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, in the order of the text."""
    known: list[ast.AST] | None = node.__dict__.get("_all")
    if known is None:
        if "_place" not in node.__dict__:
            _number(node)
        every, begin, end = node.__dict__["_place"]
        known = node.__dict__["_all"] = every[begin:end]
    return known


def opened(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, but for what is in functions and classes other than itself."""
    known: list[ast.AST] | None = node.__dict__.get("_opened")
    if known is None:
        known, passed = [], 0
        for at, one in enumerate(preorder(node)):
            if at >= passed:
                known.append(one)
                if isinstance(one, _DEFINITIONS) and at:
                    passed = at + len(preorder(one))
        node.__dict__["_opened"] = known
    return known


def closed(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, but for what is in functions and classes; one of them alone."""
    return [node] if isinstance(node, _DEFINITIONS) else opened(node)


def _number(node: ast.AST) -> None:
    """Keep with all nodes of a tree where in the order of the text they and those below stand."""
    every: list[ast.AST] = []
    below: list[tuple[ast.AST, ...]] = []
    stack = [node]
    while stack:
        at = stack.pop()
        every.append(at)
        below.append(children(at))
        stack.extend(reversed(below[-1]))
    for begin in range(len(every) - 1, -1, -1):
        end = below[begin][-1].__dict__["_place"][2] if below[begin] else begin + 1
        every[begin].__dict__["_place"] = every, begin, end


def kept(
    node: ast.AST, way: Callable[[ast.AST], list[ast.AST]], kinds: tuple[type[N], ...]
) -> list[N]:
    """Those of some kinds among the nodes that a way of walking gives; kept with the node."""
    known: dict[object, list[N]] = node.__dict__.setdefault("_kept", {})
    found = known.get((way, kinds))
    if found is None:
        found = known[way, kinds] = [one for one in way(node) if isinstance(one, kinds)]
    return found


def inside(*nodes: ast.AST, kinds: tuple[type[N], ...]) -> Iterator[N]:
    """The nodes of some kinds in nodes, in the order of the text."""
    return chain.from_iterable(kept(one, preorder, kinds) for one in nodes)


def calls_in(*nodes: ast.AST) -> Iterator[ast.Call]:
    """The calls in nodes, in the order of the text."""
    return inside(*nodes, kinds=(ast.Call,))


def parameters(args: ast.arguments) -> list[ast.arg]:
    """All parameters of a function, in the order of the text."""
    starred = [one for one in (args.vararg, args.kwarg) if one is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *starred]


def default(args: ast.arguments, parameter: ast.arg) -> ast.expr | None:
    """The default value of a parameter, if it has one."""
    positional = [*args.posonlyargs, *args.args]
    if parameter in positional:
        behind = positional.index(parameter) - (len(positional) - len(args.defaults))
        return args.defaults[behind] if behind >= 0 else None
    if parameter in args.kwonlyargs:
        return args.kw_defaults[args.kwonlyargs.index(parameter)]
    return None


def root_name(expression: ast.AST) -> str:
    """`a` of `a.b[0].c(d)`; empty of what begins with no name."""
    while isinstance(expression, ast.Attribute | ast.Subscript | ast.Call):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def written(node: ast.AST | None) -> str:
    """`a.b.c` as it is written; empty where it is not of that form."""
    if isinstance(node, ast.Name):
        return node.id
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def targets_of(target: ast.AST) -> list[ast.AST]:
    if isinstance(target, ast.Tuple | ast.List):
        return [one for element in target.elts for one in targets_of(element)]
    return [target]


def bound_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The plain names among some nodes that are given values there."""
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def elements(node: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or a list; anything else is its own."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def assigned(statement: ast.AST) -> list[ast.expr]:
    """The targets of an assignment of any form; none of another statement."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return [statement.target]
    return []


def mentioned(*nodes: ast.AST) -> set[str]:
    """The names that expressions read: `state`, `self.total`; `state["step"]`, `model.seen` too."""
    found: set[str] = set()
    for node in nodes:
        known = node.__dict__.get("_mentioned")
        if known is None:
            known = node.__dict__["_mentioned"] = frozenset(_mentioned(node))
        found |= known
    return found


def _mentioned(node: ast.AST) -> set[str]:
    return {name for one in walk(node) if (name := _variable(one))} - {"self"}


def _variable(node: ast.AST) -> str:
    """`state`, `state.step` and `state['step']` as they are written; empty of anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return f"{name}.{attr}"
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
            return f"{name}[{key!r}]"
    return ""


def stored(*targets: ast.AST) -> set[str]:
    """The names that an assignment gives values: of `state["step"]` that entry alone."""
    found: set[str] = set()
    for one in (part for target in targets for part in targets_of(target)):
        name = _variable(one.value if isinstance(one, ast.Starred) else one)
        found |= {name} if name else mentioned(one)
    return found


def made_of(
    statements: Iterable[ast.AST],
    names: set[str],
    reads: Callable[[ast.AST], set[str]] = mentioned,
    gives: Callable[[ast.AST], set[str]] = mentioned,
) -> set[str]:
    """Names, and those that statements give values made of them.

    Args:
        reads: the names that count in a value.
        gives: those that count in a target.
    """
    pairs: list[tuple[set[str], set[str]]] = []
    for one in statements:
        match one:
            case ast.Assign(value=value, targets=targets):
                pairs.append((reads(value), set().union(*map(gives, targets))))
            case ast.AugAssign(value=value, target=target):
                pairs.append((reads(value), gives(target)))
            case ast.AnnAssign(value=ast.expr() as value, target=target):
                pairs.append((reads(value), gives(target)))
            case ast.For(iter=value, target=target):
                pairs.append((reads(value), gives(target)))
    found = set(names)
    while more := {name for read, given in pairs if read & found for name in given} - found:
        found |= more
    return found


def words_in(where: ast.AST | Sequence[ast.AST]) -> set[str]:
    """All names in a node or a block, those of attributes and of keywords, too."""
    found = set()
    for one in walk(*([where] if isinstance(where, ast.AST) else where)):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found
