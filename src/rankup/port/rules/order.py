"""The order of a set, the hash of a text, a generator without a seed: each process has its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from ...script.flow import (
    Flow,
    Origin,
    call_name,
    given,
    is_none,
    literal,
    method_calls,
    receiver,
    returned,
)
from ...script.names import walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import SEEDING, SEEDS, words
from ..match import calls
from ..rewrite.script import ITEMS
from ..rewrite.training import training_in
from .facts import (
    bindings,
    guard,
    integer,
)
from .model import below
from .rule import Hit, rule

_SETS = words("builtins.set builtins.frozenset")
_COMBINED = words("union intersection difference symmetric_difference copy")
_LISTED = words("list tuple")
_IN_ORDER = words("enumerate iter zip map fromkeys join array Counter")
# What comes out of these does not depend on the order of what goes in.
_ANY_ORDER = words("sorted set frozenset sum min max any all len unique")
_FILLING = words("append extend setdefault add_module register_buffer register_parameter")
_UNSEEDED = words(
    "numpy.random.default_rng numpy.random.RandomState numpy.random.Generator random.Random "
    "numpy.random.SeedSequence numpy.random.PCG64 numpy.random.MT19937 numpy.random.Philox"
)
_OF_THE_SYSTEM = words("random.SystemRandom secrets.SystemRandom")
_SYSTEM_DRAWS = words("secrets.choice secrets.randbelow secrets.randbits")
_ALIKE_NOWHERE = words("os.urandom uuid.uuid1 uuid.uuid4 secrets.token_bytes secrets.token_hex")
_RESEEDS = words("random.seed numpy.random.seed torch.seed torch.random.seed")
_DRAWN = words("permutation permuted choice choices sample shuffle")
_NUMBERS = words("int len ord item tolist numpy")
_TEXTS = words(
    "split splitlines strip lower upper read readline readlines join format decode str open "
    "listdir glob rglob iterdir tokenize get_tokens reader"
)
_SHARED = words("broadcast rank0_first broadcast_object_list")
_UNKNOWN_SEED = "a generator without a seed, or the system's, draws something else on each rank"
_NEW_SEED = "a seed of each process' own: what is drawn behind it is another on each rank"
_TODO = "start all ranks with PYTHONHASHSEED=0, or take zlib.crc32(text.encode())"


@rule("RK130", "error", "an order of each rank's own")
def own_order(file: File, script: Script) -> Iterator[Hit]:
    """A list, a numbering or a loop in the order of a set; `hash(…)` of a text; a permutation of a
    generator that has no seed, `numpy.random.default_rng()`; a seed of the system's,
    `torch.seed()`; what `secrets` chooses, and an order by `uuid.uuid4()`.

    Python draws the hashes of texts anew in each process. So a vocabulary that is numbered by a
    set's order has other numbers on each rank, and the ranks train one model on different words.
    No random state says so.

    ```diff
     rankup.setup()
    -number = {word: i for i, word in enumerate(set(text.split()))}
    +number = {word: i for i, word in enumerate(sorted(set(text.split())))}
     for x, y in rankup.shard(loader):
         F.cross_entropy(model(x), y).backward()
    ```

    Names the place; of a set that is not seen to hold texts it is a warning, since numbers have one
    hash. `sorted(set(words))` is the same on every rank; a generator needs a seed.
    `rankup run` and its job scripts start all ranks with one PYTHONHASHSEED.
    """
    training = training_in(script, file)
    steps = [loop.node for loop in training.loops if loop.trains]
    drawn = {*_unseeded(script.flow, file), *_of_the_system(script.flow, file)}
    for node in differing(script.flow, file):
        if guard(file, script, node) or not set(steps).isdisjoint(file.names.up(node)):
            continue
        if (
            node in drawn
            and call_name(node) not in _DRAWN
            and (
                training.script.per_sample(node, ITEMS | {"__call__"})
                or below(training, node, steps.__contains__)
            )
        ):
            continue  # noise of each rank's own part of a batch
        if isinstance(node, ast.Call) and call_name(node) == "hash":
            yield Hit(node, "the hash of a text is another on each rank", _TODO)
        elif isinstance(node, ast.Call) and call_name(node) == "seed":
            yield Hit(node, _NEW_SEED, "give it a number, the same on all ranks")
        elif node in drawn:
            yield Hit(node, _UNKNOWN_SEED, "draw from a generator with a seed")
        else:
            message = "the order of a set is another on each rank"
            todo = "`sorted(…)` is the same on every rank"
            if not _texts(script.flow, file, node):
                yield Hit(node, f"{message}, unless it holds numbers alone", todo, level="warning")
            else:
                yield Hit(node, message, todo)


@lru_cache(maxsize=64)
def differing(flow: Flow, file: File) -> tuple[ast.expr, ...]:
    """The expressions of a file with a value of each process' own, where no rank hands it out."""
    return tuple(
        node
        for node in (
            *_ordered(flow, file),
            *_hashed(file),
            *_unseeded(flow, file),
            *_seeded_anew(flow, file),
            *_of_the_system(flow, file),
        )
        if not any(
            isinstance(up, ast.Call) and call_name(up) in _SHARED for up in file.names.up(node)
        )
    )


def _hashed(file: File) -> Iterator[ast.expr]:
    for call, dotted in calls(file, "hash"):
        function = file.names.function(call)
        if dotted == "builtins.hash" and getattr(function, "name", "") != "__hash__":
            yield call


def _unseeded(flow: Flow, file: File) -> Iterator[ast.Call]:
    """Draws from a generator that is made without a seed."""
    for call in file.names.all(ast.Call):
        of = receiver(call) if call_name(call) not in SEEDING | {"seed", "spawn"} else None
        made = flow.origins(file, of) if of is not None else ()
        if any(_without_seed(one.file, one.node) for one in made):
            yield call


def _of_the_system(flow: Flow, file: File) -> Iterator[ast.Call]:
    """Draws of the system's own generator, and what an order goes by: `key=lambda i: uuid4()`."""
    seeds = {
        one.node
        for call, _ in calls(file, *SEEDS, *SEEDING)
        for part in given(call)
        for one in (Origin(file, part), *flow.origins(file, part))
    }
    for call in file.names.all(ast.Call):
        dotted = file.names.called(call)
        if dotted not in _SYSTEM_DRAWS | _ALIKE_NOWHERE:
            continue
        above = (call, *file.names.up(call))
        keys = any(isinstance(up, ast.keyword) and up.arg == "key" for up in above)
        if (dotted in _SYSTEM_DRAWS and seeds.isdisjoint(above)) or (
            dotted in _ALIKE_NOWHERE and keys
        ):
            yield call


def _without_seed(file: File, node: ast.AST) -> bool:
    """True of `default_rng()`, `Generator(PCG64())` and `SystemRandom()`."""
    if not isinstance(node, ast.Call):
        return False
    dotted = file.names.called(node)
    return dotted in _OF_THE_SYSTEM or (
        dotted in _UNSEEDED and all(is_none(one) or _without_seed(file, one) for one in given(node))
    )


def _seeded_anew(flow: Flow, file: File) -> Iterator[ast.Call]:
    """`torch.seed()`, `numpy.random.seed()` and `generator.seed()`: by a number of the system's."""
    workers = {
        file.code(one.value) for one in file.names.all(ast.keyword) if one.arg == "worker_init_fn"
    }
    for call in file.names.all(ast.Call):
        if call_name(call) != "seed" or not all(is_none(one) for one in given(call)):
            continue
        of = receiver(call)
        dotted = file.names.called(call)
        known = dotted in _RESEEDS or any(
            isinstance(one.node, ast.Call) and one.file.names.called(one.node) == "torch.Generator"
            for one in (flow.origins(file, of) if of is not None else ())
        )
        function = getattr(file.names.function(call), "name", "")
        lambdas = [one for one in file.names.up(call) if isinstance(one, ast.Lambda)]
        own = function in workers or any(file.code(one) in workers for one in lambdas)
        if known and not own and function not in ITEMS:
            yield call


def _ordered(flow: Flow, file: File) -> Iterator[ast.expr]:
    """The sets that are gone over in their order, or the lists that are made of them."""
    for node in file.names.all(ast.Call):
        name = call_name(node)
        if name in _LISTED and isinstance(node.func, ast.Name) and node.args:
            if _is_set(flow, file, node.args[0]) and not _sorted(file, node):
                yield node
        elif name in _IN_ORDER:
            yield from (one for one in node.args if _is_set(flow, file, one))
    made: list[ast.ListComp | ast.DictComp | ast.GeneratorExp] = [
        *file.names.all(ast.ListComp),
        *file.names.all(ast.DictComp),
        *file.names.all(ast.GeneratorExp),
    ]
    for one in made:
        head = one.generators[0].iter
        if _is_set(flow, file, head) and not _sorted(file, one):
            yield head
    for loop in file.names.all(ast.For):
        if _fills(loop) and _is_set(flow, file, loop.iter):
            yield loop.iter


def _fills(loop: ast.For) -> bool:
    """True of a loop that puts one thing after the other into a list, a dictionary or a model."""
    return any(
        (isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store))
        or (isinstance(one, ast.Call) and call_name(one) in _FILLING)
        for one in walk(*loop.body)
    )


def _sorted(file: File, node: ast.expr) -> bool:
    """True where the order is lost again: `sorted(list(…))`, `names = list(…); names.sort()`."""
    parent = file.names.parents[node]
    if isinstance(parent, ast.Call):
        return call_name(parent) in _ANY_ORDER or (
            isinstance(parent.func, ast.Attribute) and parent.func.attr in _ANY_ORDER
        )
    if not isinstance(parent, ast.Assign):
        return False
    target = file.code(parent.targets[0])
    return any(file.code(call.func) == f"{target}.sort" for call, _ in calls(file, "sort"))


def _is_set(flow: Flow, file: File, node: ast.expr, depth: int = 4) -> bool:
    """True of a set, unless it is seen to hold numbers, which have one hash everywhere."""
    match node:
        case ast.Set(elts=parts):
            return any(isinstance(getattr(one, "value", one), str) for one in parts)
        case ast.SetComp():
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return any(_is_set(flow, file, one, depth) for one in (node.left, node.right))
        case ast.Call() if file.names.called(node) in _SETS:
            return bool(node.args) and not _numbers(file, node.args[0])
        case ast.Call() if call_name(node) in _COMBINED and isinstance(node.func, ast.Attribute):
            return _is_set(flow, file, node.func.value, depth)
        case ast.Call() if depth and (found := flow.callee(file, node)) is not None:
            where, function = found
            return any(_is_set(flow, where, one, depth - 1) for one in returned(function))
        case ast.Name() | ast.Attribute() if depth:
            made = _values(file, node)
            empty = any(isinstance(one, ast.Call) and file.code(one) == "set()" for one in made)
            filled = empty and not all(_numbers(file, one) for one in _put_in(file, node))
            return filled or any(_is_set(flow, file, one, depth - 1) for one in made)
    return False


def _put_in(file: File, name: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """Yield what is put into a set, by `update`, `add` or `|=`."""
    for call, owner in method_calls(file.names.all(ast.Call), "add", "update"):
        if file.code(owner) == file.code(name):
            yield from given(call)
    for one in file.names.all(ast.AugAssign):
        if isinstance(one.op, ast.BitOr) and file.code(one.target) == file.code(name):
            yield one.value


def _numbers(file: File, node: ast.expr) -> bool:
    """True of what is seen to be a number, or numbers."""
    if isinstance(node, ast.Name):
        items = bindings(file, node)
        return bool(items) and all(
            one.kind == "item"
            and isinstance(one.node, ast.Call)
            and call_name(one.node) in (("enumerate",) if one.path[:1] == (0,) else ("range",))
            for one in items
        )
    if isinstance(node, ast.Tuple):
        return all(_numbers(file, one) for one in node.elts)
    if isinstance(node, ast.Call) and call_name(node) in _NUMBERS:
        return True
    return integer(node) or "range(" in file.code(node)


def _texts(flow: Flow, file: File, node: ast.AST, depth: int = 3) -> bool:
    """True of what is seen to be made of texts: a split line, what a file holds, `str(…)`."""
    for one in walk(node):
        if isinstance(one, ast.JoinedStr) or (
            isinstance(one, ast.Call) and call_name(one) in _TEXTS
        ):
            return True
        held = one.elts if isinstance(one, ast.Set | ast.List | ast.Tuple) else []
        if any(isinstance(literal(part), str) for part in held):
            return True
        if depth and isinstance(one, ast.Name | ast.Attribute):
            made = [at.node for at in bindings(file, one) if at.node is not None]
            if any(_texts(flow, file, at, depth - 1) for at in (*made, *_put_in(file, one))):
                return True
            passed = [at for at in flow.origins(file, one) if at.node not in (one, *made)]
            if any(_texts(flow, at.file, at.node, depth - 1) for at in passed):
                return True
    return False


def _values(file: File, node: ast.Name | ast.Attribute) -> list[ast.expr]:
    """The expressions that a name or an attribute of `self` is given."""
    return [
        one.node
        for one in bindings(file, node)
        if one.kind == "value" and not one.path and isinstance(one.node, ast.expr)
    ]
