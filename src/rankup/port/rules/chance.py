"""Random draws: equal on all ranks where they decide, different where they are data."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import partial

from ...script.effects import leads_to
from ...script.flow import Origin, argument, call_name, first_argument, given, literal, receiver
from ...script.names import (
    Function,
    assigned,
    calls_in,
    inside,
    mentioned,
    parameters,
    walk,
)
from ...script.roles import LoopNode, Role, Script
from ...script.source import File
from ...script.torch_names import SEEDING, SEEDS, SPLITS, is_draw, root, words
from ..match import calls
from ..rewrite.context import Context
from ..rewrite.script import ITEMS
from ..rewrite.training import Training, training_in
from .facts import (
    anywhere,
    bindings,
    guard,
    names_rank,
    ported,
    with_origins,
)
from .rule import Hit, rule

# What two processes have different whatever their random states are.
_OWN = ("time.", "datetime.", "os.getpid", "os.urandom", "uuid.", "secrets.")
_PERMUTATIONS = ("torch.randperm", "numpy.random.permutation")
_NUMBERS = words("torch.randint numpy.random.randint")
_CHOICES = words(
    "torch.randperm numpy.random.permutation numpy.random.choice random.sample random.choices"
)
_PARTS = re.compile(r"ind(?:ex|ices)?|perm|idx|split", re.IGNORECASE)
_INDICES = re.compile(r"ix|idx|i|j|.*(?:ind|batch|start|sel|pos).*", re.IGNORECASE)


_WORKERS = "worker_init_fn"
_DEPTH = 3  # of what a data set is made of
_GENERATORS = words(
    "numpy.random.default_rng numpy.random.RandomState random.Random torch.Generator"
)


def draws(file: File, node: ast.AST) -> list[ast.expr]:
    """The random draws in an expression."""
    own = (call for call in calls_in(node) if own_generator(file, call) is not None)
    return list(dict.fromkeys([*_drawing(file, node), *own]))


def own_generator(file: File, call: ast.Call) -> ast.AST | None:
    """Return what makes the generator that a call draws from, where it is the script's own."""
    of = () if call_name(call) in SEEDING else (receiver(call), argument(call, "generator"))
    made = (one.node for part in of for one in bindings(file, part))
    return next((one for one in made if _seeds(file, one) is not None), None)


def drawn_for_samples(script: Script, file: File) -> Iterator[ast.Call]:
    """The draws for single samples from a generator that outlives them, its seed one for all ranks.

    One that is made or seeded for each sample gives it the same on any rank.
    """
    source = training_in(script, file).script
    drawn = [
        call
        for call in file.names.all(ast.Call)
        if source.per_sample(call, ITEMS | {"__call__"}) and receiver(call) is not None
    ]
    anew = {file.code(of) for one in drawn if call_name(one) in SEEDING and (of := receiver(one))}
    for call in drawn:
        of = argument(call, "generator") or receiver(call)
        if call_name(call) in SEEDING or of is None or file.code(of) in anew:
            continue
        if _only_evaluated(script, source.owner(source.scope(call))):
            continue
        if any(
            one_seed(one.file, one.node) and not (one.file is file and one.node in drawn)
            for one in script.flow.origins(file, of)
        ):
            yield call


def _seeds(file: File, node: ast.AST) -> list[ast.expr] | None:
    """The seeds of what makes a generator, `default_rng(0)`; None of anything else."""
    seeds: list[ast.expr] = []
    if isinstance(node, ast.Call) and call_name(node) == "manual_seed":
        seeds, node = given(node), node.func.value  # type: ignore[attr-defined]
    if not isinstance(node, ast.Call) or file.names.called(node) not in _GENERATORS:
        return None
    return [*seeds, *given(node)]


def one_seed(file: File, node: ast.AST) -> bool:
    """True of `default_rng(0)`, and of `torch.Generator()`, which has a fixed seed."""
    seeds = _seeds(file, node)
    if not seeds:
        return isinstance(node, ast.Call) and file.names.called(node) == "torch.Generator"
    return not any(names_rank(seed) or of_process(file, seed) for seed in seeds)


def _drawing(file: File, node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a piece of code that draw from the random states of the process."""
    for call in calls_in(node):
        if is_draw(file.names.called(call)) and call_name(call) not in SEEDING | {"shuffle"}:
            yield call


def of_process(file: File, node: ast.AST) -> bool:
    """True of what is made of a clock or of the process."""
    return any(file.names.called(one).startswith(_OWN) for one in calls_in(node))


def _seeded(script: Script) -> frozenset[str]:
    """The random states that the script gives the same seed on all ranks."""
    if ported(script):  # rankup.setup gives all ranks rank 0's random states
        return frozenset({"torch", "numpy", "random"})
    return frozenset(
        family
        for file in script.files
        for call, dotted in calls(file, *SEEDS)
        if script.flow.callee(file, call) is None and _same_seed(script, file, call)
        for family in _families(call, dotted)
    )


def _families(call: ast.Call, dotted: str) -> frozenset[str]:
    """The random states that a call seeds."""
    every = call_name(call) in ("seed_everything", "set_seed", "fix_seed")
    return frozenset({"torch", "numpy", "random"} if every else {root(dotted)})


def _same_seed(script: Script, file: File, call: ast.Call) -> bool:
    """True where a call seeds all ranks alike: not by a clock, a draw or the rank."""
    seed = first_argument(call)
    return seed is None or not any(
        of_process(where, one) or any(_drawing(where, one)) or names_rank(one)
        for where, one in with_origins(script, file, seed)
    )


def _seeded_for(script: Script, file: File, call: ast.Call, family: str) -> bool:
    """True where what a call draws from has one seed on all ranks.

    The last seed above it in its own function decides, else any in the script.
    """
    place, scope = file.line(call), file.names.function(call)
    above = [
        (file.line(one), same)
        for one in file.names.all(ast.Call)
        if file.names.function(one) is scope and file.line(one) < place
        for same in [_seeds_alike(script, file, one, family)]
        if same is not None
    ]
    return max(above)[1] if above else family in _seeded(script)


def _seeds_alike(script: Script, file: File, call: ast.Call, family: str) -> bool | None:
    """True where a call gives all ranks one seed, False another to each; None where it seeds not.

    Also a call of a function of the script's own, in whose body the rank may be added.
    """
    found = script.flow.callee(file, call)
    if found is None:
        known = call_name(call) in SEEDS and family in _families(call, file.names.called(call))
        return _same_seed(script, file, call) if known else None
    where, function = found
    seeds = [
        one
        for one, dotted in calls(where, *SEEDS)
        if where.names.function(one) is function and family in _families(one, dotted)
    ]
    return not any(_by_rank(file, call, function, one) for one in seeds) if seeds else None


def _by_rank(file: File, call: ast.Call, function: Function, seeding: ast.Call) -> bool:
    """True where a call of a function seeds by the rank: `set_seed(42 + rank)`, `seed += rank`."""
    every = [one.arg for one in parameters(function.args)]
    made: list[ast.Assign | ast.AugAssign] = [
        *inside(function, kinds=(ast.Assign,)),
        *inside(function, kinds=(ast.AugAssign,)),
    ]
    parts, names = list(given(seeding)), mentioned(*given(seeding))
    while more := [
        one.value for one in made if mentioned(*assigned(one)) & names and one.value not in parts
    ]:
        parts += more
        names |= mentioned(*more)
    own = [one for part in parts for one in walk(part) if isinstance(one, ast.Name | ast.Attribute)]
    if any(names_rank(one) for one in own if getattr(one, "id", "") not in every):
        return True
    passed = [argument(call, name, at) for at, name in enumerate(every) if name in names]
    return any(one is not None and names_rank(one) for one in passed)


def _handed_out(file: File, script: Script, call: ast.Call) -> bool:
    """True of what is drawn on one rank, and given to the others."""
    return bool(guard(file, script, call)) and anywhere(
        script, "broadcast", "broadcast_object_list"
    )


@rule("RK114", "error", "a split without a seed", frameworks=True)
def split_unseeded(file: File, script: Script) -> Iterator[Hit]:
    """`random_split`, `train_test_split`, or a permutation to split by, with no seed set.

    Each rank draws a split of its own, and trains on another one's validation samples.

    ```diff
    -train, valid = random_split(dataset, [0.9, 0.1])
    +train, valid = random_split(dataset, [0.9, 0.1], torch.Generator().manual_seed(0))
    ```

    Nothing: behind `rankup.setup()` all ranks have rank 0's random states.
    """
    for call in file.names.all(ast.Call):
        dotted, name = file.names.called(call), call_name(call)
        if name in SPLITS:
            what = "a split"
            seed = argument(call, "generator", 2) or argument(call, "random_state")
            ordered = name == "train_test_split" and literal(argument(call, "shuffle")) is False
            fixed = seed is not None or ordered or _handed_out(file, script, call)
            family = "numpy" if name == "train_test_split" else "torch"
        elif dotted in _PERMUTATIONS:
            what = "a permutation"
            fixed = argument(call, "generator") is not None or not _splits_by(file, call)
            family = root(dotted)
        else:
            continue
        if not fixed and not _seeded_for(script, file, call, family):
            yield Hit(
                call,
                f"each rank would draw {what} of its own"
                + (": validation data leak" if name in SPLITS else " to split by"),
                "give it a seed: generator=torch.Generator().manual_seed(0), or random_state=0",
            )


def _splits_by(file: File, call: ast.Call) -> bool:
    """True of a permutation that data are split by: outside of loops, and named so.

    Not of what is drawn for each sample or batch, in a data set, a transform or a model.
    """
    owner = file.names.enclosing(call, ast.ClassDef)
    methods = {getattr(one, "name", "") for one in (owner.body if owner is not None else ())}
    function = getattr(file.names.function(call), "name", "")
    if "forward" in methods or function in ITEMS or function in ("__call__", "__iter__"):
        return False
    around = itertools.takewhile(lambda up: not isinstance(up, Function), file.names.up(call))
    if any(isinstance(up, LoopNode) for up in around):
        return False
    assign = file.names.statement(call)
    return isinstance(assign, ast.Assign) and bool(_PARTS.search(file.code(assign.targets[0])))


@rule("RK110", "error", "a data set that each rank draws", frameworks=True)
def data_drawn(file: File, script: Script) -> Iterator[Hit]:
    """A `DataLoader` over tensors that are drawn at random without a seed, or drawn anew by a
    method, `loader.dataset.sample()`.

    `rankup.shard` takes it that sample 7 is the same on all ranks; these would train on parts of
    different data sets.

    ```diff
    +torch.manual_seed(0)
     data = torch.utils.data.TensorDataset(torch.randn(1000, 8))
     for (x,) in rankup.shard(DataLoader(data, batch_size=10)):
         model(x).mean().backward()
    ```

    Nothing: `rankup.setup()` gives all ranks rank 0's random states.
    """
    found: dict[ast.AST, tuple[File, ast.Call]] = {}
    for loader in (*script.train_loaders, *script.eval_loaders):
        found |= {one[1]: one for one in _drawn_for(script, loader)}
    drawn = [
        call
        for where, call in found.values()
        if where is file
        and argument(call, "generator") is None
        and not _seeded_before(file, script, call)
        and not _handed_out(file, script, call)
    ]
    seeded = _seeded(script)
    again = [call for call, dotted in _redrawn(file, script) if root(dotted) not in seeded]
    for call in (again + drawn)[:1]:
        yield Hit(
            call,
            "each rank would draw a data set of its own: they train on parts of different data",
            "torch.manual_seed(0) (NumPy: numpy.random.seed(0)) or rankup.setup() before it",
        )


def drawn_by_items(script: Script, loader: Origin) -> Iterator[ast.expr]:
    """The draws of what a data set gives for an item, unless they are seeded for each."""
    for origin in _made_with(script, loader):
        owner = script.flow.class_of(origin.file, origin.node)
        if owner is None:
            continue
        for name in sorted(ITEMS | {"__call__"}):
            found = script.flow.member(*owner, name)
            reached = leads_to(script.flow, *found) if found is not None else []
            if any(call_name(one) in SEEDING for _, at in reached for one in calls_in(at)):
                continue
            for file, at in reached:
                yield from draws(file, at)


def _drawn_for(script: Script, loader: Role) -> Iterator[tuple[File, ast.Call]]:
    """Calls that draw what a data set holds: in its making, or in what it is made of."""
    for origin in _made_with(script, loader):
        owner = script.flow.class_of(origin.file, origin.node)
        if owner is not None:
            for one in owner[0].names.members(owner[1]).get("__init__", ()):
                yield from ((owner[0], call) for call in _drawing(owner[0], one.node))
        yield from ((origin.file, call) for call in _drawing(origin.file, origin.node))


def _made_with(script: Script, loader: Role | Origin) -> list[Origin]:
    """Return what makes a loader's data set, and what that is given: a transform, another one."""
    if not isinstance(loader.node, ast.Call):
        return []
    data = argument(loader.node, "dataset", 0)
    found, waiting = list[Origin](), [(loader.file, data, _DEPTH)] if data is not None else []
    while waiting:
        file, node, depth = waiting.pop(0)
        for origin in script.flow.origins(file, node):
            found.append(origin)
            passed = given(origin.node) if isinstance(origin.node, ast.Call) else []
            waiting += [(origin.file, one, depth - 1) for one in passed if depth]
    return found


def _only_evaluated(script: Script, owner: ast.ClassDef | None) -> bool:
    """True of a class whose objects are in the data of loaders that nothing trains on."""
    trained = {one.node for one in script.train_loaders}
    reading = {
        loader.node
        for loader in (*script.train_loaders, *script.eval_loaders)
        for one in _made_with(script, loader)
        if (made := script.flow.class_of(one.file, one.node)) is not None
        and any(base is owner for _, base in script.flow.family(*made))
    }
    return bool(reading) and not reading & trained


def _redrawn(file: File, script: Script) -> Iterator[tuple[ast.Call, str]]:
    """`loader.dataset.sample()` that draws anew what the data set holds; and what draws."""
    for call in file.names.all(ast.Call):
        if getattr(receiver(call), "attr", "") != "dataset":
            continue
        for where, method in script.flow.methods.get(call_name(call), ()):
            yield from ((call, where.names.called(drawn)) for drawn in _drawing(where, method))


def _seeded_before(file: File, script: Script, call: ast.Call) -> bool:
    """True where there is a seed, and in flat code above what is drawn."""
    family = root(file.names.called(call))
    if family not in _seeded(script):
        return False
    if file.names.function(call) is not None or ported(script):
        return True
    seeds = [one for one, dotted in calls(file, *SEEDS) if root(dotted) in (family, "")]
    flat = [file.line(one)[0] for one in seeds if file.names.function(one) is None]
    return len(flat) < len(seeds) or not flat or min(flat) < file.line(call)[0]


@rule("RK115", "error", "a seed that each rank draws", frameworks=True)
def seed_drawn(file: File, script: Script) -> Iterator[Hit]:
    """`torch.manual_seed(random.randint(1, 10000))`, or a seed made of the time.

    The ranks seed differently: splits, the order of data and initial values differ between them.

    ```diff
    -torch.manual_seed(random.randint(1, 10000))
    +torch.manual_seed(0)
    ```

    Nothing for draws, which `rankup.setup()` makes alike; broadcasts a seed of the clock.
    """
    seen: set[ast.AST] = set()
    for call, _ in calls(file, *SEEDS, "default_rng", "Random", "RandomState"):
        for arg in given(call):
            for where, made in with_origins(script, file, arg):
                clock = of_process(where, made)
                chance = not ported(script) and any(_drawing(where, made))
                if not (clock or chance) or made in seen or _spares(script, where, made):
                    continue
                seen.add(made)
                value = made if where is file and isinstance(made, ast.expr) else arg
                yield Hit(
                    value,
                    "the seed is drawn anew by each rank: splits and initial values differ",
                    "fix it, or rankup.broadcast(…) it: rank 0's seed for all",
                    partial(_rank_0_seeds, value=value, clock=clock),
                )


def _spares(script: Script, file: File, value: ast.AST) -> bool:
    """True of a value that is broadcast already, or where no rank can wait for the others.

    A data worker is no rank, and a loop may be one over samples.
    """
    starts = [one.value for one in file.names.all(ast.keyword) if one.arg == _WORKERS]
    names = {file.code(one).split(".")[-1] for one in starts}
    if names_rank(value) or training_in(script, file).script.per_sample(value):
        return True
    return any(
        up in starts
        or isinstance(up, LoopNode)
        or (isinstance(up, ast.Call) and call_name(up) == "broadcast")
        or (isinstance(up, Function) and (up.name in names or "worker" in up.name))
        for up in (value, *file.names.up(value))
    )


def _rank_0_seeds(context: Context, value: ast.expr, clock: bool) -> str:
    """Broadcast a seed of the clock; all ranks draw alike behind `rankup.setup()`."""
    if not clock or not context.broadcast(value):
        return ""
    return "this seed is rank 0's on every rank (rankup.broadcast)"


@rule("RK116", "error", "the same random batches on all ranks")
def same_batches(file: File, script: Script) -> Iterator[Hit]:
    """A training loop without a loader that draws its batches by index, with no rank in the seed.

    With one seed for all, every rank draws the same batch. N ranks compute the same gradient.

    ```diff
     torch.manual_seed(0)
     for step in range(1000):
    -    ix = torch.randint(len(data), (64,))
    +    ix = rankup.deal(torch.randint(len(data), (64,)))
         F.cross_entropy(model(data[ix]), labels[ix]).backward()
    ```

    Puts `rankup.deal(get_batch, "train")` in place of `get_batch("train")`: each rank takes its
    part of the batch.
    """
    by_rank = any(
        (seed := first_argument(call)) is not None
        and any(names_rank(one) for _, one in with_origins(script, where, seed))
        for where in script.files
        for call, _ in calls(where, *SEEDS, "default_rng")
    )
    if by_rank or anywhere(script, "deal"):
        return
    training = training_in(script, file)
    found = {call: partial(_deal, call=call) for call in drawn_batches(training)}
    for call in (*found, *_drawn_indices(training)):
        yield Hit(
            call,
            "batches drawn at random: with the same seed every rank draws the same ones",
            "`rankup.deal(batch)` gives each rank its part; or seed a generator by rank",
            found.get(call),
        )


def _deal(context: Context, call: ast.Call) -> str:
    """`x, y = rankup.deal(get_batch, "train")`: batches that the script draws itself.

    The function goes in, not what it gives: it draws alike on all ranks, what follows does not.
    """
    if context.options.batch != "global":
        return ""
    arguments = [*call.args, *call.keywords]
    if any(one.arg == "dim" for one in call.keywords):  # deal has one of its own
        context.around(call, "rankup.deal(")
    else:
        start, end = context.script.span(call)
        behind = context.script.span(call.func)[1]
        first = min((context.script.span(one)[0] for one in arguments), default=end)
        context.edits.insert(start, "rankup.deal(")
        context.edits.replace((behind, first), ", " if arguments else ")")
    return "each rank takes its part of a batch drawn by hand (rankup.deal)"


def drawn_batches(training: Training) -> list[ast.Call]:
    """Calls in a training loop of functions that draw a batch, where no loader gives any."""
    script = training.script
    if any(loop.trains and training.sources(loop) for loop in training.loops):
        return []
    drawers = {
        function
        for function in script.functions
        if any(script.name(one.func) in _NUMBERS for one in script.inside(function, ast.Call))
        and any(True for _ in script.inside(function, ast.Return))
        and not isinstance(script.owner(function), ast.ClassDef)
    }
    return [
        call
        for call in script.all(ast.Call)
        if script.called(call) in drawers
        and not training.trains(call)
        and any(loop.trains and loop.node in script.above(call) for loop in training.loops)
    ]


def _drawn_indices(training: Training) -> Iterator[ast.Call]:
    """`ix = torch.randint(…)` in a training loop that goes over no loader."""
    script = training.script
    for loop in training.loops:
        if not loop.trains or training.sources(loop):
            continue
        for assign in script.inside(loop.node.body, ast.Assign, deep=False):
            named = _INDICES.fullmatch(script.code(assign.targets[0]))
            for call in script.inside(assign.value, ast.Call) if named else ():
                drawn = script.name(call.func) in _NUMBERS | _CHOICES
                if drawn and argument(call, "generator") is None:
                    yield call
