"""The one thing a port relies on: the differentiated loss is a mean, or a sum, over the samples.

Seen are torch's own losses, sums and means of what is made of each sample alone, linear
combinations of these, and functions and modules of the script's files that return such.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from ...script.effects import run_by_call
from ...script.flow import argument, call_name, given, literal, returned
from ...script.names import Binding, Function, elements, mentioned, stored
from ...script.roles import LoopNode
from ...script.torch_names import CLASS_WEIGHTS, OTHER_MEANS, words
from .losses import (
    Kind,
    MaskedMean,
    constant,
    full_name,
    loss_name,
    masked_call,
    masked_division,
    over_selected,
    reduction,
)
from .script import ForNode, Script
from .training import Training

# These keep a mean a mean; all else that is made of one is no longer.
_LINEAR = words(
    "to cuda cpu float double half bfloat16 item detach clone contiguous squeeze unsqueeze view "
    "reshape flatten sum mean stack cat tensor requires_grad_ tolist numpy neg append scale values "
    "items abs_ type type_as data_ptr nan_to_num backward"
)
# These take all samples of a batch together, unless they go along another dimension.
_ACROSS = words(
    "max min amax amin norm std var median topk logsumexp prod quantile sort kthvalue mode "
    "std_mean var_mean softmax log_softmax cumsum nanquantile index_add index_add_ scatter_add "
    "scatter_add_"
)
_COUNTED = words("topk kthvalue quantile nanquantile")  # a number comes before the dimension
_MOVES = words("roll flip flipud normalize")
_COUPLING = words("cov corrcoef histc bincount unique cdist pdist")
_MEANS = frozenset({Kind.MEAN, Kind.MASKED})
_SUMS = frozenset({*_MEANS, Kind.SUM, Kind.MIXED})
_ORDERS = words("argsort sort topk")
_SIZES = words("len size numel dim ndimension range arange")
_DEEPEST = 25


class NotSeen(Exception):  # noqa: N818
    """Raised where a loss is not seen to be a mean or a sum over the samples.

    Attributes:
        across: the samples of a batch are taken together there.
    """

    def __init__(self, script: Script, node: ast.AST, *, across: bool = False) -> None:
        super().__init__()
        self.script, self.node, self.across = script, node, across


def declared(training: Training, loss: ast.expr) -> Kind:
    """`SUM` where a loss adds up over the samples; `MIXED` where only a part of it does."""
    return _followed(training, loss).kind(loss)


@lru_cache(maxsize=64)
def _followed(training: Training, loss: ast.expr) -> _Scope:
    """The scope in which a loss was followed to what it is made of: several rules ask for it."""
    scope = _Scope(training, training.script, {}, [])
    scope.kind(loss)
    return scope


def masked_means(training: Training, loss: ast.expr) -> list[MaskedMean]:
    """The masked means that a loss is made of, through names and functions."""
    return _followed(training, loss).masked


def check_mean(training: Training, loss: ast.expr) -> None:
    """Follow a loss to what it is made of.

    Raises:
        NotSeen: it is not seen to be a mean or a sum over the samples.
    """
    scope = _followed(training, loss)
    kind = scope.kind(loss)
    if scope.doubts or kind not in (*_MEANS, Kind.SUM):
        raise scope.doubts[0] if scope.doubts else NotSeen(training.script, loss)


def takes_together(training: Training, script: Script, function: Function) -> Iterator[ast.AST]:
    """The places in a model's `forward` that take the samples of a batch together.

    Also a test by a mean, a sum or the like over them, which chooses what is computed.
    """
    scope = _Scope(training, script, {}, [], depth=1)
    for one in returned(function):
        scope.kind(one)
    yield from (place.node for place in scope.doubts if place.across and place.script is script)
    for branch in script.inside(function.body, ast.If, ast.While, ast.IfExp):
        assert isinstance(branch, ast.If | ast.While | ast.IfExp)
        if scope.decides(branch):
            yield branch


class _Scope:
    """The expressions of one function, or of the module.

    Attributes:
        masked: the means over some of the targets only.

    Args:
        passed: the kinds of the function's parameters.
        doubts: what is not seen to be a mean or a sum; what is found is added.
        depth: of calls that lead to the function.
    """

    def __init__(
        self,
        training: Training,
        script: Script,
        passed: dict[str, Kind],
        doubts: list[NotSeen],
        depth: int = 0,
    ) -> None:
        self.training, self.script, self.passed, self.depth = training, script, passed, depth
        self.doubts = doubts
        self.masked: list[MaskedMean] = []
        self._open: set[ast.AST] = set()
        self._known: dict[ast.AST, Kind] = {}

    @cached_property
    def _aside(self) -> _Scope:
        """This scope, for kinds that the loss is not followed to: what is found there is not said.

        What is being followed is shared: `h = model(h)`.
        """
        aside = _Scope(self.training, self.script, self.passed, [], self.depth)
        aside._open = self._open
        aside.__dict__["_aside"] = aside
        return aside

    def kind(self, node: ast.expr) -> Kind:
        """The kind of an expression; what is not seen to be else is of each sample alone."""
        if node in self._open or len(self._open) > _DEEPEST:
            return Kind.FIXED  # a value of the round before
        if node not in self._known:
            self._open.add(node)
            try:
                self._known[node] = self._kind(node)
            finally:
                self._open.discard(node)
        return self._known[node]

    def _doubt(self, node: ast.AST, kind: Kind = Kind.UNKNOWN, *, across: bool = False) -> Kind:
        self.doubts.append(NotSeen(self.script, node, across=across))
        return kind

    def _kind(self, node: ast.expr) -> Kind:
        match node:
            case ast.Constant() | ast.JoinedStr():
                return Kind.FIXED
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Subscript(value=value, slice=at):
                kind = self.kind(value)
                places = [one for one in elements(at) or [at] if not isinstance(one, ast.Slice)]
                if kind is Kind.FIXED and any(self.kind(one) is Kind.ROWS for one in places):
                    return Kind.ROWS  # `table[labels]`
                selects = kind is Kind.ROWS and self._selects(node, at)
                return self._doubt(node, kind) if selects else kind
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self.kind(value)
            case ast.UnaryOp(operand=operand):
                return self.kind(operand)
            case ast.IfExp(body=body, orelse=orelse):
                return _either([self.kind(one) for one in (body, orelse) if not self._dead(one)])
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return _together([self.kind(one) for one in parts])
            case ast.Dict(values=parts):
                return _together([self.kind(one) for one in parts])
            case ast.DictComp(value=part):
                return self.kind(part)
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part):
                kind, head = self.kind(part), node.generators[0]
                if kind in _SUMS and self._of_items(part, head.target, head.iter):
                    return kind if self._averaged(node) else self._doubt(node, kind)
                return kind
            case ast.Compare(left=left, comparators=others):
                if any(self.kind(one) in _SUMS for one in (left, *others)):
                    return self._doubt(node, across=True)
                return self._of_each(node, [left, *others])
            case ast.BinOp():
                return self._operation(node)
            case ast.Call():
                return self._call(node)
        return Kind.ROWS

    def _selects(self, node: ast.Subscript, at: ast.expr) -> bool:
        """True of `rows[mask]`, of which ranks have different numbers, and of `rows[None]`."""
        first = at.elts[0] if isinstance(at, ast.Tuple) and at.elts else at
        if isinstance(first, ast.Constant) and first.value is None:
            return True
        script = self.script
        if isinstance(first, ast.Slice):
            return self._neighbours(node, first) or self._some_rows(node, first)
        if (few := self._first_few(at)) is not None:
            return few
        if isinstance(at, ast.Tuple | ast.Slice) or not self._masks(at):
            return False
        call = script.parents.get(script.parents[node])
        return not (isinstance(call, ast.Call) and over_selected(script, call))

    def _masks(self, at: ast.expr) -> bool:
        """True of a mask made of the batch, and of the places that it is true at."""
        made = [at, *(one.node for one in self.script.flow.origins(self.script.file, at))]
        made += [one.value for one in made if isinstance(one, ast.Subscript) and _places(one.value)]
        masks = any(isinstance(one, ast.Compare | ast.UnaryOp | ast.Call) for one in made)
        return masks and self.kind(at) is Kind.ROWS

    def _first_few(self, at: ast.expr) -> bool | None:
        """True of the first samples in an order, `order[:4]`; False of all; None of no order."""
        script, flow = self.script, self.script.flow
        made = [at, *(one.node for one in flow.origins(script.file, at))]
        parts = [one for part in made for one in script.inside(part, ast.Name, ast.Call)]
        origins = [one.node for part in parts for one in flow.origins(script.file, part)]
        calls = [one for one in (*parts, *origins) if isinstance(one, ast.Call)]
        orders = {call_name(one) for one in calls} & _ORDERS
        cuts = (one for part in made for one in script.inside(part, ast.Slice))
        few = "topk" in orders or any(one.lower or one.upper for one in cuts)
        return few if orders else None

    def _neighbours(self, node: ast.Subscript, at: ast.Slice) -> bool:
        """True of `out[1:]` of `out[1:] - out[:-1]`: of each sample and the one before it."""
        both = self.script.parents.get(node)
        if not isinstance(both, ast.BinOp) or not (at.lower or at.upper):
            return False
        other = both.right if both.left is node else both.left
        code = self.script.code
        return isinstance(other, ast.Subscript) and code(other.value) == code(node.value)

    def _some_rows(self, node: ast.Subscript, at: ast.Slice) -> bool:
        """True of `losses[:4].mean()`: the first few of each rank's part."""
        script = self.script
        around = script.parents.get(node)
        call = script.parents.get(around) if isinstance(around, ast.Attribute) else around
        reduces = isinstance(call, ast.Call) and (
            reduction(script, call) is not None or self._reduced(node)
        )
        bounds = [one for one in (at.lower, at.upper) if one is not None]
        return reduces and any(literal(one) != 0 and constant(script, one) for one in bounds)

    def _of_each(self, node: ast.AST, parts: Iterable[ast.expr]) -> Kind:
        """The kind of what is made of each sample alone, out of these."""
        kinds = {self.kind(one) for one in parts}
        if kinds & _SUMS:
            return self._doubt(node, across=Kind.ROWS in kinds)
        if Kind.UNKNOWN in kinds:
            return Kind.UNKNOWN
        return Kind.ROWS if Kind.ROWS in kinds else Kind.FIXED

    def _operation(self, node: ast.BinOp) -> Kind:
        if masked := masked_division(self.script, node):
            known = len(self.doubts)
            self.kind(node.left)  # a mask by the median is one over all samples of a batch
            self.doubts[known:] = [one for one in self.doubts[known:] if one.across]
            self.masked.append(masked)
            return Kind.MASKED
        left, right = self.kind(node.left), self.kind(node.right)
        kinds = {left, right}
        summed = kinds & {Kind.SUM, Kind.MIXED}
        match node.op:
            case ast.Add() | ast.Sub() if summed:
                if Kind.ROWS in kinds:
                    self._doubt(node)
                return Kind.MIXED if len(kinds) > 1 else left
            case ast.Add() | ast.Sub() if kinds <= _MEANS:
                return self._added([node.left, node.right])
            case ast.Add() | ast.Sub() if not kinds & {Kind.ROWS, Kind.UNKNOWN}:
                return _either([left, right])
            case ast.Mult() if Kind.FIXED in kinds:
                factor, kind = (node.left, right) if left is Kind.FIXED else (node.right, left)
                return self._scaled(kind, factor)
            case ast.Mult() if summed:
                return self._doubt(node, Kind.MIXED if Kind.MIXED in kinds else Kind.SUM)
            case ast.Div() if right is Kind.FIXED or left in _SUMS:
                if right is not Kind.FIXED or self._looked_up(node.right):
                    self._doubt(node)
                sums = left in (Kind.SUM, Kind.MIXED) and not constant(self.script, node.right)
                return Kind.MEAN if sums else left  # by the size of the batch
        return self._of_each(node, [node.left, node.right])

    def _added(self, parts: list[ast.expr]) -> Kind:
        """The kind of what is added up: `MIXED` of means that divide by different numbers."""
        kinds = [self.kind(one) for one in parts]
        found = {one for one in kinds if one is not Kind.FIXED}
        if found == {Kind.MASKED}:
            units = {one.units for part in parts for one in self._masks_of(part)} - {""}
            return Kind.MIXED if len(units) > 1 else Kind.MASKED
        sums = found & {Kind.SUM, Kind.MIXED}
        return Kind.MIXED if found == _MEANS or (sums and len(found) > 1) else _together(kinds)

    def _masks_of(self, part: ast.expr) -> list[MaskedMean]:
        inner = _Scope(self.training, self.script, self.passed, [], self.depth)
        inner.kind(part)
        return inner.masked

    def _summands(self, node: ast.expr) -> list[ast.expr]:
        """Return the terms of `sum(…)`: parts of a list, or of a dictionary that is written out."""
        if isinstance(node, ast.Call) and call_name(node) == "values" and not node.args:
            node = node.func.value  # type: ignore[attr-defined]
        if isinstance(node, ast.Name | ast.Attribute):
            made = [one for one in self._made(node)[1:] if isinstance(one, ast.List | ast.Dict)]
            return [part for one in made for part in self._summands(one)] or [node]
        if isinstance(node, ast.Dict):
            return node.values
        return elements(node)

    def _scaled(self, kind: Kind, factor: ast.expr) -> Kind:
        """The kind of a value times a number: of a sum times `1 / n` a mean."""
        inverse = any(
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Div)
            and not constant(self.script, one.right)
            for one in self._made(factor)
        )
        if kind in _MEANS and self._counts(factor):
            return self._doubt(factor, kind)  # a sum again
        return Kind.MEAN if inverse and kind in (Kind.SUM, Kind.MIXED) else kind

    def _made(self, node: ast.expr) -> list[ast.expr]:
        """An expression, and what its name is given in the same function."""
        name = self.script.dotted(node)
        made = self.script.assigned(name, self.script.scope(node)) if name else []
        return [node, *(value for _, value in made)]

    def _counts(self, factor: ast.expr) -> bool:
        """True of the number of a batch's samples: `len(x)`, `x.size(0)`, `x.shape[0]`."""
        for one in self._made(factor):
            match one:
                case ast.Call(func=ast.Name(id="len"), args=[value]):
                    pass
                case ast.Call(func=ast.Attribute(value=value, attr="size"), args=[at]):
                    if literal(at) != 0:
                        continue
                case ast.Subscript(value=ast.Attribute(value=value, attr="shape"), slice=at):
                    if literal(at) != 0:
                        continue
                case _:
                    continue
            if self.kind(value) is Kind.ROWS:
                return True
        return False

    def _looked_up(self, divisor: ast.expr) -> bool:
        """True of `weights[y].sum()`: it differs from rank to rank."""
        return any(
            isinstance(at.slice, ast.Name | ast.Call | ast.Attribute)
            and self.kind(at.slice) is Kind.ROWS
            for one in self._made(divisor)
            for total in self.script.inside(one, ast.Call)
            if call_name(total) == "sum" and isinstance(total.func, ast.Attribute)
            for value in self._made(total.func.value)
            for at in self.script.inside(value, ast.Subscript)
        )

    def decides(self, branch: ast.If | ast.While | ast.IfExp) -> bool:
        """True of a branch by what is of all samples of a batch, which does more than end."""
        body = branch.body if isinstance(branch.body, list) else []
        if body and all(isinstance(one, ast.Raise) for one in body):
            return False
        before = len(self.doubts)
        for test in self.script.inside(branch.test, ast.Compare):
            sides = [test.left, *test.comparators]
            if any(map(self._counts, sides)) and any(constant(self.script, at) for at in sides):
                return all(literal(at) not in (0, 1) for at in sides)
        for one in self.script.inside(branch.test, ast.Call, ast.Name):
            whole = self.kind(one) in _SUMS
            if isinstance(one, ast.Call) and call_name(one) in ("any", "all") and not one.args:
                whole = whole or self.kind(one) is Kind.ROWS
            if whole or any(place.across for place in self.doubts[before:]):
                return True
        return False

    # What a constant of the script decides.

    def _truth(self, test: ast.expr) -> bool | None:
        """The truth of a test of what has one value in the whole script; else None."""
        asked: ast.expr
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                found = self._truth(inner)
                return None if found is None else not found
            case ast.Compare(left=asked, ops=[ast.Eq()], comparators=[ast.Constant(value=other)]):
                equals = True
            case ast.Name() | ast.Attribute():
                asked, other, equals = test, None, False
            case _:
                return None
        flow = self.script.flow.exactly
        made = flow.origins(self.script.file, asked)
        for one in made:
            around = one.file.names.parents.get(one.node)
            if isinstance(around, ast.arguments):  # a default: who runs `fire.Fire(main)` gives all
                function = one.file.names.parents[around]
                if not isinstance(function, Function) or not flow.calls_of(one.file, function):
                    return None
        values = [one.node.value for one in made if isinstance(one.node, ast.Constant)]
        truths = {one == other if equals else bool(one) for one in values}
        if len(truths) != 1 or len(values) != len(made):
            return None
        sure = not isinstance(asked, ast.Attribute) or not self._set_elsewhere(asked)
        return truths.pop() if sure else None

    def _set_elsewhere(self, asked: ast.Attribute) -> bool:
        """True of an attribute that is set by another name than `self`, or in a class below."""
        flow, name = self.script.flow, asked.attr
        owner = self.script.owner(self.script.scope(asked))
        for file in flow.files:
            for one in file.names.all(ast.Attribute):
                outside = getattr(one.value, "id", "") != "self"
                if one.attr == name and isinstance(one.ctx, ast.Store) and outside:
                    return True
            for call in file.names.all(ast.Call):
                if call_name(call) == "setattr" and len(call.args) == 3:
                    known = literal(call.args[1])
                    if known == name or (known is None and flow.class_of(file, call.args[0])):
                        return True
            for below in file.names.all(ast.ClassDef):
                family = {one for _, one in flow.family(file, below)} - {below}
                names = file.names.members(below).keys() | file.names.attributes(below).keys()
                if owner in family and name in names:
                    return True
        return False

    def _dead(self, node: ast.AST) -> bool:
        """True of what never runs: `l.sum()` of `l.mean() if self.size_average else l.sum()`."""
        for up in (node, *self.script.above(node)):
            parent = self.script.parents.get(up)
            if isinstance(up, Function):
                return False
            if isinstance(parent, ast.If | ast.IfExp) and up is not parent.test:
                truth = self._truth(parent.test)
                other = parent.orelse if truth else parent.body
                if truth is not None and up in (other if isinstance(other, list) else [other]):
                    return True
            for one in self.script.file.names.block(up):
                if one is up:
                    break
                truth = self._truth(one.test) if isinstance(one, ast.If) else None
                if truth is None or not isinstance(one, ast.If):
                    continue
                taken = one.body if truth else one.orelse
                if taken and isinstance(taken[-1], ast.Return):
                    return True
        return False

    # Names.

    def _set_once(self, node: ast.Attribute) -> bool:
        """True of `self.scale`, which a module's `__init__` gives it, and which nothing changes."""
        script, code = self.script, self.script.dotted(node)
        owner = script.owner(script.scope(node))
        if owner is None or script.flow.member(script.file, owner, "forward") is None:
            return False
        registers = {
            literal(part)
            for call in script.inside(owner, ast.Call)
            if call_name(call) in ("register_buffer", "register_parameter")
            for part in call.args[:1]
        }
        made = node.attr in registers
        for one in script.inside(owner, ast.Attribute):
            up = script.parents[one]
            if script.dotted(one) != code:
                continue
            if getattr(script.scope(one), "name", "") == "__init__":
                made = made or isinstance(one.ctx, ast.Store)
            elif (
                not isinstance(one.ctx, ast.Load)
                or (isinstance(up, ast.Subscript) and isinstance(up.ctx, ast.Store))
                or (isinstance(up, ast.Attribute) and up.attr.endswith("_"))
                or isinstance(script.statement(one), ast.Expr)
            ):
                return False
        return made

    def _named(self, node: ast.Name | ast.Attribute) -> Kind:
        script, written = self.script, self.script.dotted(node)
        if isinstance(node, ast.Attribute):
            own = script.assigned(written, script.scope(node)) if written else []
            values = [value for at, value in own if script.scope(at) is script.scope(node)]
            if values and written.startswith("self."):
                return _either([self.kind(one) for one in values])
            if self._made_once(node.value) or self._set_once(node):
                return Kind.FIXED
            inner = self.kind(node.value)
            if node.attr == "loss" and script.modules & {"transformers"}:
                return Kind.MASKED if self.masked else Kind.MEAN
            if node.attr == "T" and inner is Kind.ROWS and not written.startswith("self."):
                return self._doubt(node, inner)
            return Kind.FIXED if node.attr in ("shape", "device", "dtype") else inner
        names, at = script.file.names, script.span(node)[0]
        _, bindings = names.bindings(node.id, names.scope(node))
        found = [self._parameter(node) for one in bindings if one.kind == "parameter"]
        bindings = [
            one for one in bindings if one.kind != "parameter" and not self._dead(one.target)
        ]
        inside = {one for one in script.above(node) if isinstance(one, ast.Assign | ast.AnnAssign)}
        bindings = [
            one
            for one in bindings
            if one.kind == "item" or names.statement(one.target) not in inside
        ]
        before = [one for one in bindings if script.span(one.target)[0] < at] or bindings
        beside = False  # something that is no sum over the samples is added
        statements = [(names.statement(one.target), one) for one in before]
        statements.sort(key=lambda one: script.span(one[1].target))
        for place, (statement, _) in reversed([*enumerate(statements)]):
            if not isinstance(statement, ast.AugAssign) and _around(script, statement, node):
                found, statements = [], statements[place:]  # what it was before, it is no more
                break
        for statement, one in statements:
            grown = statement if isinstance(statement, ast.AugAssign) else None
            if grown is not None and self._divides(grown):
                found = [Kind.MEAN if at in (Kind.SUM, Kind.MIXED) else at for at in found]
                self.masked += [MaskedMean(node, "")] if self.depth else []
                continue
            value = self._grown(grown) if grown is not None else self._bound(one)
            if value in _MEANS and self._by_samples(statement):
                value = Kind.SUM
            elif value in _SUMS and self._item_by_item(statement):
                self._doubt(statement)
            if grown is not None and {value, *found} >= _MEANS:
                value = Kind.MIXED
            if grown is not None and value is Kind.FIXED:
                beside = beside or not constant(script, grown.value)
            if value is not None:
                found.append(value)
        kind = _either(found)
        return Kind.MIXED if beside and kind is Kind.SUM else kind

    def _parameter(self, node: ast.Name) -> Kind:
        """The kind of a parameter that no followed call gives: a caller may count epochs by it."""
        if node.id in self.passed:
            return self.passed[node.id]
        origins = self.script.flow.origins(self.script.file, node)
        counted = all(
            isinstance(up := one.file.names.parents.get(one.node), ast.For)
            and isinstance(up.iter, ast.Call)
            and call_name(up.iter) in ("range", "trange")
            for one in origins
        )
        return Kind.FIXED if origins and counted else Kind.ROWS

    def _made_once(self, node: ast.expr) -> bool:
        """True of `config` of `config.accumulate`, which is given to a function from outside."""
        script = self.script
        given_ = isinstance(node, ast.Name) and node.id in script.parameters(script.scope(node))
        if not given_ or node.id in self.passed:  # type: ignore[attr-defined]
            return False
        made = script.flow.origins(script.file, node)
        return bool(made) and all(
            isinstance(one.node, ast.Call | ast.Dict)
            and not any(isinstance(up, LoopNode) for up in one.file.names.up(one.node))
            for one in made
        )

    def _by_samples(self, statement: ast.AST) -> bool:
        """True of `loss = loss + one(x[i])` in `for i in range(len(x)):` over samples."""
        of_batches = [
            one.node.target for one in self.training.loops if isinstance(one.node, ForNode)
        ]
        return _grows(statement) and any(
            isinstance(up, ast.For)
            and isinstance(up.iter, ast.Call)
            and call_name(up.iter) == "range"
            and any(self._counts(one) for one in up.iter.args[:1])
            and not mentioned(up.iter).isdisjoint(stored(*of_batches))
            for up in self.script.above(statement)
        )

    def _item_by_item(self, statement: ast.AST) -> bool:
        """True of `loss += one(o, t)` in `for o, t in zip(out, y):`."""
        if not isinstance(statement, ast.AugAssign | ast.Assign):
            return False
        loops = [up for up in self.script.above(statement) if isinstance(up, ast.For)]
        return _grows(statement) and any(
            self._of_items(statement.value, up.target, up.iter)
            for up in loops[:1]
            if up not in [one.node for one in self.training.loops]
        )

    def _of_items(self, part: ast.expr, target: ast.expr, over: ast.expr) -> bool:
        """True of `one(o, t)` for `o, t in zip(out, y)`, and of nothing else of the batch.

        It may be of single samples, of which the sum is one over the samples; or of views.
        """
        values, counts = [over], False
        if isinstance(over, ast.Call) and call_name(over) in ("zip", "enumerate"):
            values = over.args
        elif isinstance(over, ast.Call) and call_name(over) == "range":
            values, counts = over.args[:1], True
        if not values or not all(
            self._counts(one) if counts else self._aside.kind(one) is Kind.ROWS for one in values
        ):
            return False
        script, bound = self.script, stored(target)
        own = stored(*(up.targets[0] for up in script.above(part) if isinstance(up, ast.Assign)))
        calls = [one for one in script.inside(part, ast.Call) if call_name(one) not in _LINEAR]
        items = [one for one in script.inside(part, ast.Subscript) if _at(one) in bound]
        aside = {*(one.func for one in calls), *(one.value for one in items)}
        names = [
            one
            for one in script.inside(part, ast.Name)
            if one.id not in own and aside.isdisjoint([one, *script.above(one)])
        ]
        others = [self._aside.kind(one) for one in names if one.id not in bound]
        return (bool(items) or len(others) < len(names)) and Kind.ROWS not in others

    def _averaged(self, node: ast.expr) -> bool:
        """True of what stands in `torch.stack(…).mean()`."""
        for up in self.script.above(node):
            if isinstance(up, ast.Call | ast.Attribute):
                word = call_name(up) if isinstance(up, ast.Call) else up.attr
                if word == "mean":
                    return True
                if word in ("stack", "cat", "torch"):
                    continue
            return False
        return False

    def _divides(self, one: ast.AugAssign) -> bool:
        """True of `loss /= n` by a number of the batch."""
        return isinstance(one.op, ast.Div) and not constant(self.script, one.value)

    def _grown(self, one: ast.AugAssign) -> Kind | None:
        kind = self.kind(one.value)
        if isinstance(one.op, ast.Add | ast.Sub):
            return kind
        if isinstance(one.op, ast.Mult | ast.Div) and kind is Kind.FIXED:
            return None
        return self._of_each(one, [one.target, one.value]) if kind is not Kind.ROWS else kind

    def _bound(self, one: Binding) -> Kind | None:
        """The kind of what a binding gives a name."""
        if one.kind == "value" and isinstance(one.node, ast.expr):
            if isinstance(one.node, ast.Call) and one.path:
                return self._call(one.node, one.path)
            if isinstance(one.node, ast.Tuple) and one.path and one.path[0] < len(one.node.elts):
                return self.kind(one.node.elts[one.path[0]])
            return self.kind(one.node)
        if one.kind == "item" and isinstance(one.node, ast.expr):
            if any(
                call_name(call) in ("parameters", "named_parameters", "range")
                for call in self.script.inside(one.node, ast.Call)
            ):
                return Kind.FIXED
            counted = isinstance(one.node, ast.Call) and call_name(one.node) == "enumerate"
            if counted and one.path[:1] == (0,):
                return Kind.FIXED
            values = one.node
            if isinstance(values, ast.Call) and call_name(values) in ("values", "items"):
                values = values.func
            elif isinstance(values, ast.Call) and call_name(values) == "zip" and one.path:
                part = values.args[one.path[0]] if one.path[0] < len(values.args) else values
                kind = self.kind(part)
                if isinstance(part, ast.Tuple | ast.List) and kind is Kind.FIXED:
                    return Kind.FIXED
            if isinstance(values, ast.Call):
                return Kind.ROWS
            kind = self.kind(values)
            return kind if kind in (*_SUMS, Kind.UNKNOWN) else Kind.ROWS
        return Kind.ROWS if one.kind == "entered" else None

    # Calls.

    def _call(self, call: ast.Call, path: tuple[int, ...] = ()) -> Kind:
        script, name = self.script, call_name(call)
        masked = masked_call(self.training, script, call)
        if masked is None:
            return self._called(call, name, path)
        self.masked.append(masked)
        kind = self._called(call, name, path)
        if kind is Kind.MEAN and masked.one_of and self._one_by_one(call.func):
            return Kind.MIXED
        return Kind.MASKED if kind is Kind.MEAN else kind

    def _one_by_one(self, node: ast.expr) -> bool:
        """True of `c` of `for c in criteria`."""
        names = self.script.file.names
        if not isinstance(node, ast.Name):
            return False
        return any(one.kind == "item" for one in names.bindings(node.id, names.scope(node))[1])

    def _called(self, call: ast.Call, name: str, path: tuple[int, ...]) -> Kind:
        script = self.script
        full = full_name(script, call.func)
        known = reduction(script, call) or self._further(call, full)
        if known is not None:
            masked = len(self.masked)
            kind = self._of_each(call, given(call))
            del self.masked[masked:]  # of an argument, as of `pos_weight=`, and not of the loss
            return kind if known is Kind.ROWS else known
        if name in _SIZES:
            return Kind.FIXED
        if full == "sum" and call.args:
            return self._added(self._summands(call.args[0]))
        if full in ("float", "int", "list", "tuple", "zip", "enumerate", "iter", "reversed"):
            return _together([self.kind(one) for one in call.args])
        if name == "grad":
            # Of a mean by the inputs of a sample, it is divided by the size of a rank's part.
            of_a_mean = bool(call.args) and self.kind(call.args[0]) in (*_MEANS, Kind.MIXED)
            return self._doubt(call, Kind.ROWS, across=True) if of_a_mean else Kind.ROWS
        found = run_by_call(script.flow, script.file, call)
        if found is not None:
            return self._returned(call, script.sibling(found[0]), found[1], path)
        value: ast.expr | None = None
        rest = given(call)
        if full.startswith("torch.") and call.args:
            value, rest = call.args[0], rest[1:]
        elif isinstance(call.func, ast.Attribute) and not script.file.names.dotted(call.func):
            value = call.func.value
        if value is None:
            kind = self._of_each(call, rest)
            return Kind.ROWS if name == "next" or self.training.runs_model(script, call) else kind
        return self._method(call, name, value, rest)

    def _further(self, call: ast.Call, full: str) -> Kind | None:
        made = [full]
        if not full.startswith("torch.nn.functional."):
            origins = self.script.flow.origins(self.script.file, call.func)
            calls = [one for one in origins if isinstance(one.node, ast.Call)]
            made = [one.file.names.dotted(one.node.func) for one in calls]  # type: ignore[attr-defined]
        known = bool(made) and all(
            one.startswith("torch.nn.") and one.split(".")[-1] in OTHER_MEANS for one in made
        )
        return Kind.MEAN if known else None

    def _method(self, call: ast.Call, name: str, value: ast.expr, rest: list[ast.expr]) -> Kind:
        kind = self.kind(value)
        times = name in ("mul", "mul_")
        scaled = times or name in ("div", "div_")
        if kind in _SUMS and scaled and rest and self.kind(rest[0]) is Kind.FIXED:
            if times:
                return self._scaled(kind, rest[0])
            return kind if kind in _MEANS or constant(self.script, rest[0]) else Kind.MEAN
        if kind in _SUMS:
            return kind if name in _LINEAR else self._doubt(call)
        if kind is Kind.UNKNOWN:
            if name == "sum" and not (rest or call.keywords or self.doubts):
                return Kind.SUM
            return Kind.MEAN if name == "mean" else kind
        others = self._of_each(call, rest)
        if kind is Kind.FIXED and others is Kind.FIXED:
            return kind
        along = argument(call, "dim") or argument(call, "axis")
        placed = [one for one in rest[:1] if one in call.args]  # not `descending=True`
        places = [*rest[1:], along] if name in _COUNTED else [*placed, along]
        if name in ("norm", "roll", "normalize"):
            places = [*rest[1:2], along or argument(call, "dims")]
        if name == "flip":
            places = [*rest, argument(call, "dims")]
        numbers = {number for one in places if one is not None for number in _numbers(one)}
        unnamed = all(one is None for one in places)
        if name in ("sum", "mean"):
            whole = 0 in numbers or unnamed or not (numbers or along or rest)
            return (Kind.MEAN if name == "mean" else Kind.SUM) if whole else Kind.ROWS
        if name == "masked_select" and not self._reduced(call):
            return self._doubt(call, Kind.ROWS)
        if name in ("gather", "index_select") and 0 in numbers and self._first_few(rest[-1]):
            return self._doubt(call, Kind.ROWS)
        if name == "index_select" and 0 in numbers and self._masks(rest[-1]):
            return self._doubt(call, Kind.ROWS)
        first = name == "unsqueeze" and 0 in numbers
        own = self.script.dotted(value).startswith("self.")
        if first or (name == "t" and not own):
            return self._doubt(call, Kind.ROWS)
        together = name in _ACROSS and (unnamed or 0 in numbers or self._one_number_each(value))
        together = together or (name in _MOVES and (0 in numbers or (name == "roll" and unnamed)))
        if name in _COUPLING or together or (name == "layer_norm" and self._whole_shape(call)):
            return self._doubt(call, Kind.ROWS, across=True)
        return Kind.ROWS

    def _one_number_each(self, value: ast.expr) -> bool:
        """True of the losses of single samples, of which the last dimension is the samples' too."""
        script, flow = self.script, self.script.flow
        for part in script.inside(value, ast.Name, ast.Call):
            for one in self._made(part):
                if not isinstance(one, ast.Call) or reduction(script, one) is not Kind.ROWS:
                    continue
                made = {
                    call_name(at.node)
                    for at in flow.origins(script.file, one.func)
                    if isinstance(at.node, ast.Call)
                }
                if not made.union([loss_name(script, one)]).isdisjoint(CLASS_WEIGHTS):
                    return True
        return False

    def _reduced(self, node: ast.expr) -> bool:
        """True of `each` of `each.sum()` and of `each.mean()`."""
        parent = self.script.parents.get(node)
        return isinstance(parent, ast.Attribute) and parent.attr in ("sum", "mean")

    def _whole_shape(self, call: ast.Call) -> bool:
        """True of `layer_norm(x, x.shape)`, which takes the dimension of the samples along."""
        shape = argument(call, "normalized_shape", 1)
        if isinstance(shape, ast.Call):
            return call_name(shape) == "size" and not given(shape)
        return isinstance(shape, ast.Attribute) and shape.attr == "shape"

    def _returned(
        self, call: ast.Call, script: Script, function: Function, path: tuple[int, ...]
    ) -> Kind:
        """The kind of what a function of the script's files returns."""
        model = self.training.runs_model(self.script, call)
        if self.depth > 4:
            return Kind.ROWS
        passed = {}
        followed = not (model and isinstance(call.func, ast.Name))  # else of each sample
        aside = self._aside
        before = len(aside.doubts)
        for name in script.parameters(function) - {"self"}:
            value = script.given(function, name, call)
            scope = self if followed else aside
            passed[name] = Kind.FIXED if value is None else scope.kind(value)
        taken = passed.values() if followed else [aside.kind(one) for one in given(call)]
        self.doubts += [one for one in aside.doubts[before:] if one.across][:1]
        if model and any(one in _SUMS for one in taken):
            return self._doubt(call)
        doubts: list[NotSeen] = [] if model else self.doubts
        inner = _Scope(self.training, script, passed, doubts, self.depth + 1)
        kinds = []
        for one in (one for one in returned(function) if not inner._dead(one)):
            parts = elements(one)
            if path and len(parts) > path[0]:
                parts = [parts[path[0]]]
            kinds.append(_together([inner.kind(part) for part in parts]))
        kind = _either(kinds) if kinds else Kind.ROWS
        if model and doubts:  # of a model what it gives for each sample counts
            if kind not in _SUMS:
                return Kind.ROWS
            self.doubts += [place for place in doubts if not place.across]
        if inner.masked and (kind in _SUMS or not model):
            self.masked.append(MaskedMean(call, ""))
        return Kind.ROWS if model and kind in (Kind.FIXED, Kind.UNKNOWN) else kind


def _numbers(node: ast.expr) -> list[int]:
    """The numbers in a dimension or a tuple of them; -1 is not the samples'."""
    if isinstance(node, ast.Tuple | ast.List):
        return [number for one in node.elts for number in _numbers(one)]
    if isinstance(node, ast.UnaryOp):
        return [-number for number in _numbers(node.operand)]
    value = literal(node)
    return [value] if type(value) is int else []


def _grows(statement: ast.AST) -> bool:
    """True of `loss += one` and of `loss = loss + one`."""
    return isinstance(statement, ast.AugAssign) or (
        isinstance(statement, ast.Assign)
        and not stored(*statement.targets).isdisjoint(mentioned(statement.value))
    )


def _at(node: ast.Subscript) -> str:
    """`i` of `rows[i]` and of `rows[i, 0]`."""
    at = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return at.id if isinstance(at, ast.Name) else ""


def _places(node: ast.expr) -> bool:
    """True of `torch.where(y > 0)` and of `(y > 0).nonzero()`: the places a mask is true at."""
    return isinstance(node, ast.Call) and call_name(node) in ("where", "nonzero")


def _either(kinds: list[Kind]) -> Kind:
    """Of several ways to make a value; nothing of the batch is a beginning."""
    found = set(kinds) - {Kind.FIXED}
    if found & {Kind.SUM, Kind.MIXED} and len(found) > 1:
        return Kind.MIXED
    return _together(kinds)


def _together(kinds: list[Kind]) -> Kind:
    """Of several parts of a value."""
    order = (Kind.ROWS, Kind.UNKNOWN, Kind.MASKED, Kind.MEAN, Kind.MIXED, Kind.SUM)
    return next((kind for kind in order if kind in kinds), Kind.FIXED)


def _around(script: Script, statement: ast.AST, node: ast.AST) -> bool:
    """True where a place is only come to by a statement: it stands in its block, or further in."""
    block = script.file.names.block(statement)
    return any(one in block for one in (node, *script.above(node)))
