"""What is drawn at random: equal on all ranks where it decides, different where it is data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from ..tree import walk
from .facts import anywhere, calls, loops_in, ranked, text_of
from .guards import guard
from .rule import Hit, Rule

_SEEDS = ("manual_seed", "seed", "manual_seed_all", "seed_everything", "set_seed", "fix_seed")
_DRAWS = words("randint randperm choice choices sample permutation uniform integers")
_DRAWN = re.compile(r"randint\(|random\(\)|time\(\)|getpid\(\)|urandom|time_ns\(\)|\.now\(\)")
_PARTS = re.compile(r"ind(?:ex|ices)?|perm|idx|split", re.IGNORECASE)
_RANDOM = re.compile(
    r"torch\.(?:rand|randn|randint|normal)|numpy\.random\.(?:rand|randn|randint|random|normal|uniform)"
)
_SHARED = ("broadcast", "same_random")


def split_unseeded(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK114: one rank's validation data are another's training data."""
    seeded = _seeded(roles)
    todo = "give it a seed: generator=torch.Generator().manual_seed(0), or random_state=0"
    for call, _ in calls(source, "random_split", "train_test_split", "random_splitter"):
        given = argument(call, "generator", 2) or argument(call, "random_state")
        if call_name(call) == "train_test_split" and _says(source, call, "shuffle", "False"):
            continue
        wants_numpy = call_name(call) == "train_test_split"
        family = "numpy" if wants_numpy else "torch"
        if given is None and family not in seeded and not _shared(source, roles, call):
            yield Hit(call, "each rank would draw a split of its own: validation data leak", todo)
    for call in source.index.all(cst.Call):
        dotted = source.index.called(call)
        family = "torch" if dotted == "torch.randperm" else "numpy"
        if dotted not in ("torch.randperm", "numpy.random.permutation"):
            continue
        if family in seeded or argument(call, "generator") is not None:
            continue
        if _in_loop(source, call) or not _makes_parts(source, call):
            continue
        yield Hit(call, "each rank would draw a permutation of its own to split by", todo)


def _seeded(roles: Roles) -> frozenset[str]:
    """Of which random states the script sets the same seed on all ranks."""
    found: set[str] = set()
    if anywhere(roles, "same_random"):
        return frozenset({"torch", "numpy", "python"})
    for source in roles.sources:
        for call, dotted in calls(source, *_SEEDS):
            given = call.args[0].value if call.args else None
            if given is not None and _differs(roles, source, given):
                continue
            if call_name(call) in ("seed_everything", "set_seed", "fix_seed"):
                found |= {"torch", "numpy", "python"}
            elif dotted.startswith("torch"):
                found.add("torch")
            elif dotted.startswith("numpy"):
                found.add("numpy")
            elif dotted.startswith("random"):
                found.add("python")
    return frozenset(found)


def _differs(roles: Roles, source: Source, given: cst.BaseExpression) -> bool:
    text = text_of(roles, source, given)
    return _DRAWN.search(text) is not None or "rank" in text


def _says(source: Source, call: cst.Call, name: str, value: str) -> bool:
    given = argument(call, name)
    return given is not None and source.code(given) == value


def _shared(source: Source, roles: Roles, call: cst.Call) -> bool:
    """Drawn on one rank, and given to the others."""
    return bool(guard(source, roles, call)) and any(
        word in one.text for one in roles.sources for word in _SHARED
    )


def _in_loop(source: Source, call: cst.Call) -> bool:
    for up in source.index.up(call):
        if isinstance(up, (cst.For, cst.While)):
            return True
        if isinstance(up, cst.FunctionDef):
            return up.name.value in ("forward", "__getitem__", "__iter__")
    return False


def _makes_parts(source: Source, call: cst.Call) -> bool:
    for up in source.index.up(call):
        if isinstance(up, cst.Assign):
            return _PARTS.search(source.code(up.targets[0].target)) is not None
        if isinstance(up, cst.BaseStatement):
            return False
    return False


def data_drawn(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK110: a data set that each rank draws for itself, as in a first try."""
    found: dict[cst.CSTNode, tuple[Source, cst.Call]] = {}
    for loader in (*roles.train_loaders, *roles.eval_loaders):
        given = argument(loader.node, "dataset", 0) if isinstance(loader.node, cst.Call) else None
        if given is not None:
            found |= {one[1]: one for one in _drawn(roles, loader.source, given, 3)}
    for where, call, draws in _redrawn(source, roles):
        family = "torch" if where.index.called(draws).startswith("torch") else "numpy"
        if family not in _seeded(roles):
            yield Hit(
                call,
                "each rank would draw a data set of its own: they train on parts of different data",
                f"{family} seeded alike on all ranks, or rankup.same_random(): rank 0's random "
                "state for all",
            )
            return
    for where, call in found.values():
        if where is not source or argument(call, "generator") is not None:
            continue
        family = "torch" if source.index.called(call).startswith("torch") else "numpy"
        if _seeded_before(source, roles, call, family) or _shared(source, roles, call):
            continue
        yield Hit(
            call,
            "each rank would draw a data set of its own: they train on parts of different data",
            "torch.manual_seed(0) before it, or rankup.same_random(): rank 0's random state for "
            "all",
        )
        return


def _drawn(
    roles: Roles, source: Source, node: cst.CSTNode, depth: int
) -> Iterator[tuple[Source, cst.Call]]:
    """Calls that draw what a data set holds: in its making, or in what it is made of."""
    for origin in roles.flow.origins(source, node):
        owner = roles.flow.class_of(origin.source, origin.node)
        if owner is not None:
            for one in owner[0].index.members(owner[1]).get("__init__", ()):
                yield from _draws_in(owner[0], one.node)
        yield from _draws_in(origin.source, origin.node)
        if depth and isinstance(origin.node, cst.Call):
            for arg in origin.node.args:
                yield from _drawn(roles, origin.source, arg.value, depth - 1)


def _redrawn(source: Source, roles: Roles) -> Iterator[tuple[Source, cst.Call, cst.Call]]:
    """`loader.dataset.sample()` that draws anew what the data set holds; where, and the draw."""
    for call in source.index.all(cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Attribute):
            continue
        if func.value.attr.value != "dataset":
            continue
        for where in roles.sources:
            for made in where.index.all(cst.FunctionDef):
                if made.name.value == func.attr.value and where.index.class_(made) is not None:
                    for _, draws in _draws_in(where, made):
                        yield where, call, draws


def _draws_in(source: Source, node: cst.CSTNode) -> Iterator[tuple[Source, cst.Call]]:
    for call in walk(node):
        if isinstance(call, cst.Call) and _RANDOM.fullmatch(source.index.called(call)):
            yield source, call


def _seeded_before(source: Source, roles: Roles, call: cst.Call, family: str) -> bool:
    """Whether there is a seed, and in flat code above what is drawn."""
    if family not in _seeded(roles):
        return False
    if source.index.function(call) is not None or anywhere(roles, "same_random"):
        return True
    seeds = [
        one
        for one, dotted in calls(source, *_SEEDS)
        if dotted.startswith((family, "rankup")) or not dotted
    ]
    flat = [source.line_of(one)[0] for one in seeds if source.index.function(one) is None]
    return len(flat) < len(seeds) or not flat or min(flat) < source.line_of(call)[0]


def seed_drawn(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK115: a seed that each rank draws for itself."""
    if any(word in one.text for one in roles.sources for word in _SHARED):
        return
    for call, dotted in calls(source, "manual_seed", "seed"):
        if not dotted.startswith(("torch", "numpy", "random")):
            continue
        given = call.args[0].value if call.args else None
        if given is None or isinstance(given, cst.Integer):
            continue
        if _DRAWN.search(text_of(roles, source, given)) and not ranked(roles, source, given):
            yield Hit(
                call,
                "the seed is drawn anew by each rank: splits and initial values differ",
                "fix it, or rankup.same_random() first: rank 0's random state for all",
            )


def same_batches(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK116: batches drawn at random, and with one seed the same ones on all ranks."""
    if _rank_in_seed(roles) or anywhere(roles, "deal"):
        return
    for loop in loops_in(source, roles.train_loops):
        if loop.loaders:
            continue
        hit = _draw(source, roles, loop.node)
        if hit is not None:
            yield Hit(
                hit,
                "batches drawn at random: with the same seed every rank draws the same ones",
                "`rankup.deal(batch)` gives each rank its part; or seed a generator by rank",
            )


def _rank_in_seed(roles: Roles) -> bool:
    return any(
        call.args and re.search(r"rank|offset", text_of(roles, source, call.args[0].value))
        for source in roles.sources
        for call, _ in calls(source, *_SEEDS, "default_rng")
    )


def _draw(source: Source, roles: Roles, loop: cst.CSTNode) -> cst.Call | None:
    """The first call in a training loop that draws whole batches, itself or one call away."""
    for call in walk(loop):
        if not isinstance(call, cst.Call):
            continue
        dotted = source.index.called(call)
        if _draws_index(source, call, dotted):
            return call
        callee = roles.flow.callee(source, call)
        if callee is None or "batch" not in callee[1].name.value.lower():
            continue
        for inner in walk(callee[1].body):
            if isinstance(inner, cst.Call) and _draws_index(
                callee[0], inner, callee[0].index.called(inner)
            ):
                return call
    return None


def _draws_index(source: Source, call: cst.Call, dotted: str) -> bool:
    if call_name(call) not in _DRAWS or not dotted.startswith(("torch", "numpy", "random")):
        return False
    if argument(call, "generator") is not None:
        return False
    assign = source.index.enclosing(call, cst.Assign, cst.BaseCompoundStatement)
    if not isinstance(assign, cst.Assign):
        return False
    name = source.code(assign.targets[0].target).lower()
    return (
        name in ("ix", "idx", "i", "j") or re.search(r"ind|batch|start|sel|pos", name) is not None
    )


RULES = (
    Rule("RK110", "data-drawn", "error", data_drawn, frameworks=True),
    Rule("RK114", "split-unseeded", "error", split_unseeded, frameworks=True),
    Rule("RK115", "seed-per-rank", "error", seed_drawn, frameworks=True),
    Rule("RK116", "same-random-batches", "error", same_batches),
)
