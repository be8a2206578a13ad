"""What is drawn at random: equal on all ranks where it decides, different where it is data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import argument, call_name, first_argument
from ...script.flow import given as arguments_of
from ...script.names import Function, walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import DRAWS, SEEDING, SEEDS, words
from .facts import anywhere, calls, integer, loops_in, ported, ranked, text_of
from .guards import guard
from .rule import Hit, Rule

_DRAWS = words("randint randperm choice choices sample permutation uniform integers")
_DRAWN = re.compile(r"randint\(|random\(\)|time\(\)|getpid\(\)|urandom|time_ns\(\)|\.now\(\)")
_PARTS = re.compile(r"ind(?:ex|ices)?|perm|idx|split", re.IGNORECASE)
_RANDOM = re.compile(
    r"torch\.(?:rand|randn|randint|normal)|numpy\.random\.(?:rand|randn|randint|random|normal|uniform)"
)
_SHARED = ("broadcast",)
# What two processes have different whatever their random states are.
_OWN = re.compile(r"time\(\)|getpid\(\)|urandom|time_ns\(\)|\.now\(\)")


def split_unseeded(file: File, script: Script) -> Iterator[Hit]:
    """RK114: one rank's validation data are another's training data."""
    seeded = _seeded(script)
    todo = "give it a seed: generator=torch.Generator().manual_seed(0), or random_state=0"
    for call, _ in calls(file, "random_split", "train_test_split", "random_splitter"):
        given = argument(call, "generator", 2) or argument(call, "random_state")
        if call_name(call) == "train_test_split" and _says(file, call, "shuffle", "False"):
            continue
        wants_numpy = call_name(call) == "train_test_split"
        family = "numpy" if wants_numpy else "torch"
        if given is None and family not in seeded and not _shared(file, script, call):
            yield Hit(call, "each rank would draw a split of its own: validation data leak", todo)
    for call in file.names.all(ast.Call):
        dotted = file.names.called(call)
        family = "torch" if dotted == "torch.randperm" else "numpy"
        if dotted not in ("torch.randperm", "numpy.random.permutation"):
            continue
        if family in seeded or argument(call, "generator") is not None:
            continue
        if _in_loop(file, call) or not _makes_parts(file, call):
            continue
        yield Hit(call, "each rank would draw a permutation of its own to split by", todo)


def _seeded(script: Script) -> frozenset[str]:
    """Of which random states the script sets the same seed on all ranks."""
    found: set[str] = set()
    if ported(script):  # rankup.setup gives all ranks rank 0's random states
        return frozenset({"torch", "numpy", "python"})
    for file in script.files:
        for call, dotted in calls(file, *SEEDS):
            given = first_argument(call)
            if given is not None and _differs(script, file, given):
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


def _differs(script: Script, file: File, given: ast.expr) -> bool:
    text = text_of(script, file, given)
    return _DRAWN.search(text) is not None or "rank" in text


def _says(file: File, call: ast.Call, name: str, value: str) -> bool:
    given = argument(call, name)
    return given is not None and file.code(given) == value


def _shared(file: File, script: Script, call: ast.Call) -> bool:
    """Drawn on one rank, and given to the others."""
    return bool(guard(file, script, call)) and any(
        word in one.text for one in script.files for word in _SHARED
    )


def _in_loop(file: File, call: ast.Call) -> bool:
    for up in file.names.up(call):
        if isinstance(up, (ast.For, ast.While)):
            return True
        if isinstance(up, Function):
            return up.name in ("forward", "__getitem__", "__iter__")
    return False


def _makes_parts(file: File, call: ast.Call) -> bool:
    for up in file.names.up(call):
        if isinstance(up, ast.Assign):
            return _PARTS.search(file.code(up.targets[0])) is not None
        if isinstance(up, ast.stmt):
            return False
    return False


def data_drawn(file: File, script: Script) -> Iterator[Hit]:
    """RK110: a data set that each rank draws for itself, as in a first try."""
    found: dict[ast.AST, tuple[File, ast.Call]] = {}
    for loader in (*script.train_loaders, *script.eval_loaders):
        given = argument(loader.node, "dataset", 0) if isinstance(loader.node, ast.Call) else None
        if given is not None:
            found |= {one[1]: one for one in _drawn(script, loader.file, given, 3)}
    for where, call, draws in _redrawn(file, script):
        family = "torch" if where.names.called(draws).startswith("torch") else "numpy"
        if family not in _seeded(script):
            yield Hit(
                call,
                "each rank would draw a data set of its own: they train on parts of different data",
                f"{family} seeded alike on all ranks; rankup.setup() gives all of them rank 0's "
                "random states",
            )
            return
    for where, call in found.values():
        if where is not file or argument(call, "generator") is not None:
            continue
        family = "torch" if file.names.called(call).startswith("torch") else "numpy"
        if _seeded_before(file, script, call, family) or _shared(file, script, call):
            continue
        yield Hit(
            call,
            "each rank would draw a data set of its own: they train on parts of different data",
            "torch.manual_seed(0) before it; rankup.setup() gives all ranks rank 0's random states",
        )
        return


def _drawn(
    script: Script, file: File, node: ast.AST, depth: int
) -> Iterator[tuple[File, ast.Call]]:
    """Calls that draw what a data set holds: in its making, or in what it is made of."""
    for origin in script.flow.origins(file, node):
        owner = script.flow.class_of(origin.file, origin.node)
        if owner is not None:
            for one in owner[0].names.members(owner[1]).get("__init__", ()):
                yield from _draws_in(owner[0], one.node)
        yield from _draws_in(origin.file, origin.node)
        if depth and isinstance(origin.node, ast.Call):
            for arg in arguments_of(origin.node):
                yield from _drawn(script, origin.file, arg, depth - 1)


def _redrawn(file: File, script: Script) -> Iterator[tuple[File, ast.Call, ast.Call]]:
    """`loader.dataset.sample()` that draws anew what the data set holds; where, and the draw."""
    for call in file.names.all(ast.Call):
        func = call.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Attribute):
            continue
        if func.value.attr != "dataset":
            continue
        for where in script.files:
            for made in where.names.all(ast.FunctionDef):
                if made.name == func.attr and where.names.enclosing(made, ast.ClassDef) is not None:
                    for _, draws in _draws_in(where, made):
                        yield where, call, draws


def _draws_in(file: File, node: ast.AST) -> Iterator[tuple[File, ast.Call]]:
    for call in walk(node):
        if isinstance(call, ast.Call) and _RANDOM.fullmatch(file.names.called(call)):
            yield file, call


def _seeded_before(file: File, script: Script, call: ast.Call, family: str) -> bool:
    """Whether there is a seed, and in flat code above what is drawn."""
    if family not in _seeded(script):
        return False
    if file.names.function(call) is not None or ported(script):
        return True
    seeds = [
        one
        for one, dotted in calls(file, *SEEDS)
        if dotted.startswith((family, "rankup")) or not dotted
    ]
    flat = [file.line(one)[0] for one in seeds if file.names.function(one) is None]
    return len(flat) < len(seeds) or not flat or min(flat) < file.line(call)[0]


def seed_drawn(file: File, script: Script) -> Iterator[Hit]:
    """RK115: a seed that each rank draws for itself."""
    if any(word in one.text for one in script.files for word in _SHARED):
        return
    for call, dotted in calls(file, "manual_seed", "seed"):
        if not dotted.startswith(("torch", "numpy", "random")):
            continue
        given = first_argument(call)
        if given is None or integer(given):
            continue
        drawn = _OWN if ported(script) else _DRAWN
        if drawn.search(text_of(script, file, given)) and not ranked(script, file, given):
            yield Hit(
                call,
                "the seed is drawn anew by each rank: splits and initial values differ",
                "fix it, or rankup.broadcast(…) it: rank 0's seed for all",
            )


def same_batches(file: File, script: Script) -> Iterator[Hit]:
    """RK116: batches drawn at random, and with one seed the same ones on all ranks."""
    if _rank_in_seed(script) or anywhere(script, "deal"):
        return
    for loop in loops_in(file, script.train_loops):
        if loop.loaders:
            continue
        hit = _draw(file, script, loop.node)
        if hit is not None:
            yield Hit(
                hit,
                "batches drawn at random: with the same seed every rank draws the same ones",
                "`rankup.deal(batch)` gives each rank its part; or seed a generator by rank",
            )


def _rank_in_seed(script: Script) -> bool:
    return any(
        (seed := first_argument(call)) is not None
        and re.search(r"rank|offset", text_of(script, file, seed))
        for file in script.files
        for call, _ in calls(file, *SEEDS, "default_rng")
    )


def _draw(file: File, script: Script, loop: ast.AST) -> ast.Call | None:
    """The first call in a training loop that draws whole batches, itself or one call away."""
    for call in walk(loop):
        if not isinstance(call, ast.Call):
            continue
        dotted = file.names.called(call)
        if _draws_index(file, call, dotted):
            return call
        callee = script.flow.callee(file, call)
        if callee is None or "batch" not in callee[1].name.lower():
            continue
        for inner in walk(callee[1]):
            if isinstance(inner, ast.Call) and _draws_index(
                callee[0], inner, callee[0].names.called(inner)
            ):
                return call
    return None


def _draws_index(file: File, call: ast.Call, dotted: str) -> bool:
    if call_name(call) not in _DRAWS or not dotted.startswith(("torch", "numpy", "random")):
        return False
    if argument(call, "generator") is not None:
        return False
    assign = file.names.statement(call)
    if not isinstance(assign, ast.Assign):
        return False
    name = file.code(assign.targets[0]).lower()
    return (
        name in ("ix", "idx", "i", "j") or re.search(r"ind|batch|start|sel|pos", name) is not None
    )


def steering_draw(file: File, script: Script) -> Iterator[Hit]:
    """RK186: a random draw that decides about a step, by which ranks part."""
    if not ported(script):
        return
    for loop in loops_in(file, script.train_loops):
        backwards = {call for where, call in loop.backwards if where is file}
        for node in walk(*loop.body):
            heads = [getattr(node, "test", None), getattr(node, "iter", None)]
            if not isinstance(node, (ast.If, ast.While, ast.For)) or not _steers(node, backwards):
                continue
            for draw in (one for head in heads if head is not None for one in draws(file, head)):
                shared = any(
                    isinstance(up, ast.Call) and file.names.called(up) == "rankup.broadcast"
                    for up in file.names.up(draw)
                )
                if not shared:
                    yield Hit(
                        draw,
                        "decides about a step, and in training each rank draws for itself: they "
                        "would step unequally often",
                        "let rank 0 draw for all: rankup.broadcast(…)",
                    )


def _steers(node: ast.AST, backwards: set[ast.Call]) -> bool:
    """True where a branch or a loop decides about a backward, a step or the end of a loop."""
    leaves = (ast.Break, ast.Continue, ast.Return, ast.Raise)
    inside = walk(*getattr(node, "body", []), *getattr(node, "orelse", []))
    return any(
        isinstance(one, leaves)
        or (isinstance(one, ast.Call) and (one in backwards or call_name(one) == "step"))
        for one in inside
    )


def draws(file: File, node: ast.AST) -> list[ast.expr]:
    """The random draws in an expression, with methods called on them: `torch.rand(1).item()`."""
    found: list[ast.expr] = []
    for call in walk(node):
        if not isinstance(call, ast.Call):
            continue
        name = file.names.called(call)
        if name.split(".")[-1] in SEEDING | {"shuffle"}:
            continue
        if not (name.startswith(("random.", "numpy.random.")) or name in DRAWS):
            continue
        whole: ast.expr = call
        while isinstance(up := file.names.parents[whole], ast.Attribute):
            around = file.names.parents[up]
            if not (isinstance(around, ast.Call) and around.func is up):
                break
            whole = around
        found.append(whole)
    return found


RULES = (
    Rule("RK110", "data-drawn", "error", data_drawn, frameworks=True),
    Rule("RK114", "split-unseeded", "error", split_unseeded, frameworks=True),
    Rule("RK115", "seed-per-rank", "error", seed_drawn, frameworks=True),
    Rule("RK116", "same-random-batches", "error", same_batches),
    Rule("RK186", "draw-that-steers", "error", steering_draw),
)
