"""The steps of a training, which all ranks make together: decisions about them are rank 0's.

Ranks that go different ways meet no more: at a step, at the end of a loop, at a collective. A
schedule counts these steps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial

from ...script.effects import callee, leads_to, trains
from ...script.flow import argument, call_name, given, literal, method_calls, receiver
from ...script.names import COMPREHENSIONS, Function, calls_in, mentioned, walk
from ...script.roles import Loop, LoopNode, Script
from ...script.source import File
from ...script.torch_names import (
    EXITS,
    OUR_COLLECTIVES,
    SEEDS,
    SHOWING,
    STEP_SCHEDULES,
    words,
)
from ..match import calls
from ..rewrite.context import Context
from ..rewrite.script import ForNode
from ..rewrite.training import Training, training_in
from .chance import drawn_for_samples, draws, of_process, one_seed, own_generator
from .decisions import RANK_0_DECIDES, followed, is_number, tested
from .facts import (
    ends,
    is_reduction,
    loops_in,
    names_rank,
    ported,
    ranked,
    sharded_loader,
    string,
    with_origins,
)
from .rule import Hit, rule

_AGREE = "let rank 0 give it to all, rankup.broadcast(…)"
# What may be given a model or an optimizer and leaves it as it is.
_NO_CHANGE = SHOWING | words(
    "parameters named_parameters no_grad len isinstance next iter sum norm"
)
_STEPS = EXITS | {"step"}
_SAME = "all ranks draw the same, for different samples, from a generator of its own"
_APART = "add the rank to its seed, or draw without it"
_ALONE = "decides about a step, and in training each rank {}: they would step unequally often"
# Schedules of which an argument is a number of steps.
_COUNTING = words("StepLR MultiStepLR CosineAnnealingLR CosineAnnealingWarmRestarts LinearLR")
# Exceptions by which a script asks something; an interrupt comes to all ranks.
_EXPECTED = words(
    "StopIteration ImportError KeyError ValueError FileNotFoundError KeyboardInterrupt"
)


def steers(training: Training, node: ast.AST) -> bool:
    """True where a branch or a loop decides about a backward, a step or the end of a loop."""
    blocks = _blocks(node)
    inside = training.script.inside(blocks, ast.stmt, ast.Call, deep=False)
    return any(_leaves_step(training, node, one) for one in inside) or any(
        training.trains(one) for one in blocks
    )


def _leaves_step(training: Training, node: ast.AST, one: ast.AST) -> bool:
    """True of a step, an exit, and a `break` out of a loop of steps: not of one over a batch."""
    if isinstance(one, ast.Call):
        return call_name(one) in _STEPS
    if isinstance(one, ast.Break | ast.Continue):
        ends = next((up for up in training.script.above(one) if isinstance(up, LoopNode)), node)
        return training.trains(ends)
    return isinstance(one, ast.Return | ast.Raise)


def _blocks(node: ast.AST) -> list[ast.AST]:
    """The statements, or the values, that a test chooses from."""
    found: list[ast.AST] = []
    for name in ("body", "orelse"):
        block = getattr(node, name, [])
        found += block if isinstance(block, list) else [block]
    return found


def _branches(
    training: Training, meets: Callable[[ast.AST], bool]
) -> Iterator[tuple[Loop, ast.AST, ast.expr]]:
    """The branches and loops in a training loop that decide about a step or about a collective.

    The inner ones first: what is put together there, the outer ones have to lead to.
    """
    script = training.script
    for loop in training.loops:
        kinds = (ast.If, ast.While, ast.IfExp, ast.For, ast.AsyncFor)
        inside = list(script.inside(loop.node.body, *kinds, deep=False)) if loop.trains else []
        for one in reversed(inside):
            assert isinstance(one, kinds)
            if _parts(training, one, meets) or _chooses_model(training, loop, one):
                yield loop, one, one.iter if isinstance(one, ForNode) else one.test


def _parts(training: Training, node: ast.AST, meets: Callable[[ast.AST], bool]) -> bool:
    return steers(training, node) or any(meets(block) for block in _blocks(node))


def _chooses_model(training: Training, loop: Loop, node: ast.AST) -> bool:
    """True where a branch decides which models take part in a step, and in its collectives."""
    script = training.script
    nearest = next((up for up in script.above(node) if isinstance(up, LoopNode)), None)
    if nearest is not loop.node or not isinstance(node, ast.If | ast.IfExp):
        return False
    models = {model.name for model in training.models}
    used = [
        {
            script.dotted(call.func)
            for call in script.inside(getattr(node, name), ast.Call)
            if script.dotted(call.func) in models
        }
        for name in ("body", "orelse")
    ]
    return used[0] != used[1]


def _drawn(training: Training, loop: Loop, head: ast.expr) -> list[ast.expr]:
    """The random draws in a test, and those that its names are made of."""
    script, names = training.script, mentioned(head)
    made = [
        one.value
        for one in script.inside(loop.node.body, ast.Assign, deep=False)
        if mentioned(*one.targets) & names
    ]
    return list({one: None for value in (head, *made) for one in draws(script.file, value)})


def _rank_0s(file: File, node: ast.AST) -> bool:
    """True of what is broadcast already."""
    return any(
        isinstance(up, ast.Call) and file.names.called(up) == "rankup.broadcast"
        for up in (node, *file.names.up(node))
    )


@rule("RK186", "error", "a draw that decides about a step")
def steering_draw(file: File, script: Script) -> Iterator[Hit]:
    """A random draw in a training loop that decides whether a batch is passed over, how many steps
    there are, when the loop ends, or whether a collective is called.

    Each rank draws numbers of its own: those that step unequally often wait for each other for
    ever.

    ```diff
     rankup.setup()
     for x, y in rankup.shard(loader):
    -    if random.random() < 0.1:
    +    if rankup.broadcast(random.random()) < 0.1:
             continue
         F.cross_entropy(model(x), y).backward()
    ```

    Puts `rankup.broadcast` around the draw: it is rank 0's on every rank.
    """
    if script.distributed and not ported(script):
        return  # a script of its own seeds: its ranks may draw alike
    training = training_in(script, file)
    for loop, _, head in _branches(training, partial(_waits, script, file)):
        for draw in _drawn(training, loop, head):
            if not _rank_0s(file, draw):
                yield Hit(
                    draw,
                    _ALONE.format("draws for itself"),
                    "let rank 0 draw for all: rankup.broadcast(…)",
                )


def _waits(script: Script, file: File, block: ast.AST) -> bool:
    """True where a ported script calls a collective in a block, or in what that leads to."""
    here = [(file, call) for call in calls_in(block)] if ported(script) else []
    reached = [callee(script.flow, *one) for one in here]
    inner = [one for found in reached if found is not None for one in leads_to(script.flow, *found)]
    here += [(where, call) for where, function in inner for call in calls_in(function)]
    called = {where.names.called(call) for where, call in here}
    return not called.isdisjoint(f"rankup.{name}" for name in OUR_COLLECTIVES)


def decided_alike(context: Context) -> None:
    """Let rank 0 decide on every rank about a step, a collective, or what later steps go by.

    The fix of RK186. It comes last, when all collectives have been put in.
    """
    training = context.training
    for region in context.local:
        _given_alike(context, region)
    for loop, one, head in _branches(training, context.meets):
        for draw in _drawn(training, loop, head):
            if context.broadcast(draw):
                done = "what decides about a step is drawn by rank 0 (rankup.broadcast)"
                context.done(draw, done)
        if not isinstance(one, ForNode) and _parts(training, one, context.meets):
            _decided_by_rank_0(context, one, head)
    for region in context.local:
        inside = list(context.script.inside(region.body, ast.If, ast.While, deep=False))  # type: ignore[attr-defined]
        for one in reversed(inside):
            test = one.test  # type: ignore[attr-defined]
            steered = isinstance(region, Function) and _parts(training, one, context.meets)
            if steered or any(map(context.meets, _blocks(one))) or _alters(context, region, one):
                _decided_by_rank_0(context, one, test)


def _decided_by_rank_0(context: Context, one: ast.AST, test: ast.expr) -> None:
    """Broadcast a test that goes by this rank's part of a batch."""
    script = context.script
    region = next((up for up in script.above(one) if up in context.local), None)
    if region is not None and _of_this_rank(context, region, test) and context.broadcast(test):
        context.leave(one, RANK_0_DECIDES)


def _of_this_rank(context: Context, region: ast.AST, value: ast.AST) -> bool:
    """True where a value goes by a name of this rank's part that is not put together in it."""
    script, local = context.script, context.local[region]
    return any(
        mentioned(node) & local
        for node in script.inside(value, ast.Name, ast.Subscript, ast.Attribute)
        if not context.alike & {node, *script.above(node)}
    )


def _given_alike(context: Context, region: ast.AST) -> None:
    """Broadcast what a schedule, or the settings of an optimizer, are given of this rank's part."""
    script = context.script
    for one in script.inside(region.body, ast.Call, ast.Assign, deep=False):  # type: ignore[attr-defined]
        if next((up for up in script.above(one) if up in context.local), None) is not region:
            continue
        values: list[ast.expr] = []
        if isinstance(one, ast.Assign):
            if any(_setting(context, target) for target in one.targets):
                values = [one.value]
        elif isinstance(one, ast.Call) and call_name(one) == "step":
            values = given(one) if _role(context, receiver(one), "scheduler") else []
        elif isinstance(one, ast.Call) and followed(script, one):
            values = [value for value in tested(script, one) if _reckoned(context, region, value)]
        for value in values:
            if not _of_this_rank(context, region, value):
                continue
            code = " ".join(script.code(value).split())
            if _each_its_own_rounds(context, region, value):
                context.leave(value, f"`{code}` is of each rank's own: {_AGREE}")
                continue
            context.broadcast(value)
            context.leave(
                value,
                f"`{code}` is rank 0's on all ranks, of its part of the batch (rankup.broadcast)",
            )


def _reckoned(context: Context, region: ast.AST, value: ast.expr) -> bool:
    """True of a number, a dictionary of numbers, and a name that is given nothing else."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        return False  # a text, most likely
    if not isinstance(value, ast.Name):
        return is_number(value)
    made = [
        one.value
        for one in context.script.inside(region.body, ast.Assign, deep=False)  # type: ignore[attr-defined]
        if value.id in mentioned(*one.targets)
    ]
    return bool(made) and all(map(is_number, made))


def _each_its_own_rounds(context: Context, region: ast.AST, node: ast.AST) -> bool:
    """True where ranks come by a place unequally often, as in a loop over a batch's rows."""
    for up in context.script.above(node):
        if up is region:
            return False
        if isinstance(up, (*COMPREHENSIONS, ast.ExceptHandler, ast.Lambda)):
            return True
        if isinstance(up, ForNode) and mentioned(up.iter) & context.local[region]:
            return True
    return False


def _role(context: Context, node: ast.expr | None, *kinds: str) -> bool:
    script = context.script
    return node is not None and any(
        one.kind in kinds for one in script.understood.of(script.file, node)
    )


def _setting(context: Context, target: ast.AST) -> bool:
    """True of `group["lr"]` of an optimizer's groups, and of a part of a model or an optimizer."""
    script = context.script
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return False
    root: ast.expr = target
    while isinstance(root, ast.Attribute | ast.Subscript):
        if isinstance(root, ast.Attribute) and root.attr == "param_groups":
            return True
        root = root.value
        if _role(context, root, "model", "optimizer", "scheduler"):
            return True
    over = [up.iter for up in script.above(target) if isinstance(up, ForNode)]
    return any("param_groups" in script.code(one) for one in over)


def _alters(context: Context, region: ast.AST, node: ast.AST) -> bool:
    """True where a branch changes what later steps go by: a rate, a model, a weight of the loss."""
    script, blocks = context.script, _blocks(node)
    if _asks_form(node.test):  # type: ignore[attr-defined]
        return False
    if any(_changes_setting(context, one, 2) for one in blocks):
        return True
    losses = {name for one in context.training.loops if one.node is region for name in one.losses}
    stored = {
        script.dotted(one)
        for one in script.inside(blocks, ast.Name, ast.Attribute, deep=False)
        if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store)
    }
    made = context.training.feeding(region, losses) if stored else set()  # type: ignore[arg-type]
    return any(_carried(context, region, name) for name in (stored & made) - losses)


def _asks_form(test: ast.expr) -> bool:
    """True of `isinstance(batch, list)`, `mask is None`, `not x.dim() == 3`: of no number."""
    match test:
        case ast.UnaryOp(operand=inner):
            return _asks_form(inner)
        case ast.BoolOp(values=parts):
            return all(map(_asks_form, parts))
        case ast.Call():
            return call_name(test) in ("isinstance", "hasattr", "callable")
        case ast.Compare(left=left, ops=ops):
            asks = isinstance(left, ast.Call) and call_name(left) in ("dim", "ndimension", "type")
            return asks or all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
    return False


def _carried(context: Context, region: ast.AST, name: str) -> bool:
    """True of a name that goes from round to round: it has a value before, and may keep it."""
    script, body = context.script, region.body  # type: ignore[attr-defined]
    if isinstance(region, Function):
        return name.startswith("self.")
    target = region.target if isinstance(region, ForNode) else None
    always: list[ast.AST] = [] if target is None else [target]
    waiting = list(body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.With | ast.AsyncWith | ast.Try):
            waiting += one.body
        elif isinstance(one, ast.Assign) and name not in mentioned(one.value):
            always += one.targets
    inside = set(script.inside(region, ast.AST))
    before = [at for at, _ in script.assigned(name, script.scope(region)) if at not in inside]
    return bool(before) and not any(
        script.dotted(part) == name
        for target in always
        for part in script.inside(target, ast.Name, ast.Attribute)
    )


def _changes_setting(context: Context, block: ast.AST, depth: int) -> bool:
    """True where code changes a model, an optimizer or a schedule, here or in what it calls."""
    script = context.script
    saves = {one.node for one in script.understood.saves}
    for one in script.inside(block, ast.Call, ast.expr, deep=False):
        stored = isinstance(one, ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store)
        if stored and _setting(context, one):
            return True
        if not isinstance(one, ast.Call) or call_name(one) in _NO_CHANGE:
            continue
        if saves & {one, *script.above(one)}:
            continue
        parts = [*given(one), *([one.func.value] if isinstance(one.func, ast.Attribute) else [])]
        if any(_role(context, part, "model", "optimizer", "scheduler") for part in parts):
            return True
        called = context.called(one) if depth else None
        if called is not None and any(
            _changes_setting(called[0], inner, depth - 1) for inner in called[1].body
        ):
            return True
    return False


@rule("RK187", "error", "a clock that decides about a step")
def steering_clock(file: File, script: Script) -> Iterator[Hit]:
    """A test by the time, or by a name that is made of it, in a training loop or at its head, that
    ends the loop or decides about a step.

    Ranks read their clocks at different moments: one stops, and the others wait for it for ever.

    ```diff
     start = time.time()
     for x, y in rankup.shard(loader):
         F.cross_entropy(model(x), y).backward()
    -    if time.time() - start > 3600:
    +    if rankup.broadcast(time.time() - start > 3600):
             break
    ```

    Puts `rankup.broadcast` around the test: rank 0's clock decides for all.
    """
    if script.distributed and not ported(script):
        return
    training = training_in(script, file)
    source = training.script
    tests: list[ast.If | ast.While] = [*file.names.all(ast.If), *file.names.all(ast.While)]
    for one in tests:
        loops = [up for up in (one, *source.above(one)) if isinstance(up, LoopNode)]
        shared = any(_rank_0s(file, call) for call in source.inside(one.test, ast.Call))
        if shared or not any(training.trains(up) for up in loops):
            continue
        names = mentioned(one.test)
        made = [
            node.value
            for node in source.inside(source.scope(one), ast.Assign)
            if mentioned(*node.targets) & names
        ]
        ends = isinstance(one, ast.While) or steers(training, one)
        if ends and any(of_process(file, node) for node in (one.test, *made)):
            yield Hit(
                one,
                _ALONE.format("has a clock of its own"),
                "let rank 0's clock decide for all: rankup.broadcast(…)",
                partial(_rank_0s_clock, test=one.test),
            )


def _rank_0s_clock(context: Context, test: ast.expr) -> str:
    context.broadcast(test)
    return "rank 0's clock decides for all ranks (rankup.broadcast)"


@rule("RK188", "warning", "a seed amid the batches")
def seed_in_a_pass(file: File, script: Script) -> Iterator[Hit]:
    """`torch.manual_seed(…)`, `np.random.seed(…)` or `random.seed(…)` in a loop over the batches of
    a training; and there, or for a sample in `__getitem__`, draws from a generator that the script
    makes with one seed for all ranks (`np.random.default_rng(0)`).

    From there on all ranks draw the same noise for different samples: `rankup.shard` parts the
    random states of Python, NumPy and torch alone.

    ```diff
    +torch.manual_seed(0)
     for x, y in rankup.shard(loader):
    -    torch.manual_seed(0)
         F.cross_entropy(model(x + torch.randn_like(x)), y).backward()
    ```

    Leaves a comment at the place.
    """
    if script.distributed and not ported(script):
        return
    training = training_in(script, file)
    heads = {node for _, _, head in _branches(training, lambda block: False) for node in walk(head)}
    for loop in training.loops:
        for call in training.script.inside(loop.node.body, ast.Call, deep=False):
            seeding = file.names.called(call).startswith(("torch.", "numpy.random.", "random."))
            if loop.trains and seeding and call_name(call) in SEEDS and given(call):
                yield Hit(
                    call,
                    "from here on all ranks draw the same noise, for different samples",
                    "add the rank to the seed, or seed before the loop",
                )
        own = calls_in(loop.node) if loop.trains and training.sources(loop) else ()
        for call in own:
            made = own_generator(file, call)
            alike = made is not None and one_seed(file, made)
            if alike and not _rank_0s(file, call) and call not in heads:
                yield Hit(call, _SAME, _APART)
                break
    for call in drawn_for_samples(script, file):
        yield Hit(call, _SAME, _APART)


@rule("RK179", "warning", "steps of a schedule counted by hand")
def schedule_length(file: File, script: Script) -> Iterator[Hit]:
    """A number of training steps made of the size of the data set and the batch size.

    With a batch per GPU there are N times fewer steps: the rate never comes down.

    ```diff
     scheduler = get_linear_schedule_with_warmup(
    -    optimizer, num_warmup_steps=100, num_training_steps=len(dataset) // batch_size * epochs
    +    optimizer, num_warmup_steps=100, num_training_steps=len(loader) * epochs
     )
    ```

    Nothing at `--batch global`, where the number of steps stays the same.
    """
    for call in file.names.all(ast.Call):
        if call_name(call) not in STEP_SCHEDULES and "schedule" not in call_name(call):
            continue
        lengths = (argument(call, one) for one in ("num_training_steps", "total_steps", "t_total"))
        for length in (one for one in lengths if one is not None):
            text = "\n".join(where.code(one) for where, one in with_origins(script, file, length))
            if re.search(r"len\(.*\)\s*//?.*batch", text) and "world" not in text:
                yield Hit(
                    length,
                    "steps counted from the data set and the batch: a batch per GPU has fewer",
                    "count len(loader) after the data are sharded",
                )
                break


@rule("RK185", "warning", "a schedule times the number of ranks")
def times_ranks(file: File, script: Script) -> Iterator[Hit]:
    """A schedule whose length counts the ranks, or that is stepped once for each of them; one that
    is stepped at each batch for a number of steps of one GPU, where each rank has batches of its
    own; a learning rate times the ranks where the batch keeps its size.

    All ranks make one step together, and `len(loader)` is the number of these steps. The linear
    rule for the learning rate is for batches that grow with the ranks.

    ```diff
     world = rankup.setup()
     loader = rankup.shard(DataLoader(data, batch_size=64, shuffle=True))
    -schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, len(loader) * world.world_size)
    +schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, len(loader))
     for x, y in loader:
         model(x).mean().backward()
         schedule.step()
    ```

    Nothing: batches stay those of one GPU, and so do their number and the schedule.
    """
    if not script.distributed:
        return
    for scheduler in script.schedulers:
        call = scheduler.node
        if scheduler.file is not file or not isinstance(call, ast.Call):
            continue
        for value in given(call):
            if _loader_times_ranks(file, script, value):
                yield Hit(
                    value,
                    "len(loader) is the number of steps of each rank already: too long or short",
                    "leave the number of ranks out",
                )
    whole, parts = _whole_batches(script), _own_batches(script)
    yield from _stepped(file, script, parts)
    for optimizer in script.optimizers:
        call = optimizer.node
        if optimizer.file is not file or not isinstance(call, ast.Call) or not whole:
            continue
        rate = argument(call, "lr", 1)
        if rate is not None and any(
            _times_ranks(one) for _, one in with_origins(script, file, rate)
        ):
            yield Hit(
                rate,
                "the learning rate grows with the number of ranks, and the batch does not",
                "leave the rate as it is, or let the batch grow: batch='per-gpu'",
            )


def _stepped(file: File, script: Script, parts: bool) -> Iterator[Hit]:
    """`scheduler.step()` N times per step, or at each of N times fewer steps."""
    for call, stepped in method_calls(file.names.all(ast.Call), "step"):
        made = [one.node for one in script.of(file, stepped) if one.kind == "scheduler"]
        if not made:
            continue
        again = next((up.iter for up in file.names.up(call) if isinstance(up, ast.For)), None)
        if isinstance(again, ast.Call) and call_name(again) == "range" and names_rank(again):
            yield Hit(
                call,
                "steps the schedule once for each rank, and all ranks make one step together",
                "step it once",
            )
        inside = any(up is loop.node for loop in script.train_loops for up in file.names.up(call))
        for node in made if parts and inside else ():
            if not isinstance(node, ast.Call) or call_name(node) not in _COUNTING:
                continue
            if any(_count(file, script, one) for one in given(node)[1:]):
                yield Hit(
                    call,
                    "stepped at each batch for a length of one GPU: a rank has 1/N of its batches",
                    "count the length in len(loader), or deal parts of one batch: rankup.shard",
                )


def _count(file: File, script: Script, value: ast.expr) -> bool:
    """True of a literal number of steps, or a list of them."""
    found = [one.node for one in script.flow.origins(file, value)]
    numbers = [inner for one in found for inner in getattr(one, "elts", [one])]
    return bool(numbers) and all(type(literal(one)) is int for one in numbers)


def _whole_batches(script: Script) -> bool:
    """True where the training batches keep their size, of which each rank has a part."""
    return any(
        call_name(call) == "shard" and string(argument(call, "batch")) != "per-gpu"
        for file in script.files
        for call, dotted in calls(file, "shard")
        if dotted.startswith("rankup.")
    )


def _own_batches(script: Script) -> bool:
    """True where each rank has batches of the script's size."""
    return not _whole_batches(script) and any(
        sharded_loader(script, one)
        and isinstance(one.node, ast.Call)
        and (size := argument(one.node, "batch_size", 1)) is not None
        and not ranked(script, one.file, size)
        for one in script.train_loaders
    )


def _loader_times_ranks(file: File, script: Script, value: ast.expr) -> bool:
    return any(
        _times_ranks(one)
        and any(
            call_name(call) == "len"
            and any(role.kind == "train_loader" for role in script.of(file, call.args[0]))
            for call in calls_in(one)
            if call.args
        )
        for _, one in with_origins(script, file, value)
    )


def _times_ranks(node: ast.AST) -> bool:
    """True of a product or quotient in which a factor tells the number of ranks."""
    return any(
        isinstance(one, ast.BinOp)
        and isinstance(one.op, (ast.Mult, ast.Div, ast.FloorDiv))
        and (names_rank(one.left) or names_rank(one.right))
        for one in walk(node)
    )


@rule("RK181", "error", "one rank leaves the step")
def stops_alone(file: File, script: Script) -> Iterator[Hit]:
    """A broad `except` around a training step; `break` or `continue` where this rank's loss is NaN.

    The others wait for its part of the gradients until the time-out; the log blames them.

    ```diff
     rankup.setup()
     for x, y in rankup.shard(loader):
         loss = F.cross_entropy(model(x), y)
    -    if torch.isnan(loss):
    +    if torch.isnan(rankup.all_reduce(loss.detach(), op="sum")):
             break
         loss.backward()
    ```

    Leaves a remark. A rank that raises ends the job, and `rankup logs --cause` names it.
    """
    for node in file.names.all(ast.Try):
        for handler in node.handlers if trains(file, script, *node.body) else ():
            what = file.code(handler.type) if handler.type is not None else "anything"
            if what not in _EXPECTED and not ends(*handler.body):
                yield Hit(
                    handler,
                    f"`except {what}` around a training step: a rank goes on, the others wait",
                    "raise again, so that the job ends",
                )
    if script.distributed and any("all_reduce" in one.text for one in script.files):
        return
    for loop in loops_in(file, script.train_loops):
        for test in (one for one in walk(loop.node) if isinstance(one, ast.If)):
            nan = re.search(r"isnan\(|isfinite\(|isinf\(", file.code(test.test))
            together = any(is_reduction(file, one) for one in calls_in(test.test))
            if nan and _leaves(test.body) and not together:
                yield Hit(
                    test,
                    "leaves the step by this rank's own loss: the others wait for its part",
                    "let all ranks decide together: rankup.all_reduce(bad, op='max')",
                    partial(_decided, test=test.test),
                )


def _decided(context: Context, test: ast.expr) -> str | None:
    """Nothing where RK122 has let all ranks decide together."""
    return "" if context.needs_all(test) else None


def _leaves(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(one, (ast.Break, ast.Continue, ast.Return))
        or (isinstance(one, ast.Call) and call_name(one) in EXITS)
        for one in walk(*body)
    )
