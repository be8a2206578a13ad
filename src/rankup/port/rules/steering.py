"""The decisions in a training: by chance, by a clock or by a part of a batch, rank 0's for all.

Ranks that go different ways meet no more: at a step, at the end of a loop, at a collective.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from ...script.flow import call_name, given
from ...script.names import mentioned, walk
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import EXITS, SEEDS
from ..rewrite.context import Context
from ..rewrite.script import ForNode
from ..rewrite.training import Loop, Training, training_in
from .chance import draws, draws_by_own, of_process
from .facts import ported
from .rule import Hit, rule

_STEPS = EXITS | {"step"}
_ALONE = "decides about a step, and in training each rank {}: they would step unequally often"


def steers(training: Training, node: ast.AST) -> bool:
    """True where a branch or a loop decides about a backward, a step or the end of a loop."""
    leaves = ast.Break | ast.Continue | ast.Return | ast.Raise
    blocks = _blocks(node)
    return any(
        isinstance(one, leaves) or (isinstance(one, ast.Call) and call_name(one) in _STEPS)
        for one in training.script.inside(blocks, ast.stmt, ast.Call, deep=False)
    ) or any(training.trains(one) for one in blocks)


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
        inside = list(script.inside(loop.node.body, ast.AST, deep=False)) if loop.trains else []
        for one in reversed(inside):
            if isinstance(one, ast.If | ast.While | ast.IfExp | ForNode) and (
                _parts(training, one, meets) or _chooses_model(training, loop, one)
            ):
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
    there are, or when the loop ends.

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
    for loop, _, head in _branches(training, lambda block: False):
        for draw in _drawn(training, loop, head):
            if not _rank_0s(file, draw):
                yield Hit(
                    draw,
                    _ALONE.format("draws for itself"),
                    "let rank 0 draw for all: rankup.broadcast(…)",
                )


def decided_alike(context: Context) -> None:
    """Let rank 0 decide on every rank about a step or about a collective: the fix of RK186.

    It comes last, when all collectives have been put in.
    """
    for loop, one, head in _branches(context.training, context.meets):
        for draw in _drawn(context.training, loop, head):
            if draw not in context.alike:
                context.alike.add(draw)
                context.around(draw, "rankup.broadcast(")
                done = "what decides about a step is drawn by rank 0 (rankup.broadcast)"
                context.done(draw, done)
        if not isinstance(one, ForNode) and _parts(context.training, one, context.meets):
            _decided_by_rank_0(context, loop.node, one, head)


def _decided_by_rank_0(context: Context, loop: LoopNode, one: ast.AST, test: ast.expr) -> None:
    """Broadcast a test that goes by this rank's part of a batch."""
    script = context.script
    inner = next((up for up in script.above(one) if up in context.local), None)
    if inner is not loop:
        return
    rest = {
        name
        for node in script.inside(test, ast.Name)
        if not context.alike & {node, *script.above(node)}
        for name in mentioned(node)
    }
    if rest & context.local[loop]:
        context.alike.add(test)
        context.around(test, "rankup.broadcast(")
        context.leave(
            one,
            "rank 0 decides here for all ranks, by its part of the batch (rankup.broadcast)",
        )


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
    context.alike.add(test)
    context.around(test, "rankup.broadcast(")
    return "rank 0's clock decides for all ranks (rankup.broadcast)"


@rule("RK188", "warning", "a seed amid the batches")
def seed_in_a_pass(file: File, script: Script) -> Iterator[Hit]:
    """`torch.manual_seed(…)`, `np.random.seed(…)` or `random.seed(…)` in a loop over the batches of
    a training; and there, draws from a generator that the script makes with one seed for all
    ranks (`np.random.default_rng(0)`).

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
        own = draws_by_own(file, loop.node) if loop.trains and training.sources(loop) else ()
        for call in own:
            if not _rank_0s(file, call) and call not in heads:
                yield Hit(
                    call,
                    "all ranks draw the same noise from a generator of its own",
                    "add the rank to its seed, or draw without it",
                )
                break
