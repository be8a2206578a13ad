"""The decisions in a training: by chance, by a clock or by a part of a batch, rank 0's for all.

Ranks that go different ways meet no more: at a step, at the end of a loop, at a collective.
"""

from __future__ import annotations

import ast

from ....script.flow import call_name, given
from ....script.names import Function
from ....script.roles import LoopNode
from ....script.torch_names import SEEDS
from ...rules.chance import draws
from ..context import Context
from ..expressions import mentioned
from ..script import ForNode

_STEPS = {"step", "exit", "_exit"}
_SEEDS = SEEDS | {"default_rng"}
_OWN = ("time.", "datetime.", "os.getpid", "os.urandom", "uuid.", "secrets.")


def decided_alike(context: Context) -> None:
    """Let rank 0 decide on every rank about a step or about a collective.

    It comes last, when all collectives have been put in.
    """
    script = context.script
    for loop in context.training.loops:
        if not loop.trains:
            continue
        inside = list(script.inside(loop.node.body, ast.AST, deep=False))
        # The inner ones first: what is put together there, the outer ones have to lead to.
        for one in reversed(inside):
            if not isinstance(one, ast.If | ast.While | ast.IfExp | ForNode):
                continue
            if not (steers(context, one) or any(context.meets(block) for block in _blocks(one))):
                continue
            head = one.iter if isinstance(one, ForNode) else one.test
            _drawn_by_rank_0(context, loop.node, head)
            if not isinstance(one, ForNode):
                _decided_by_rank_0(context, loop.node, one, head)


def _drawn_by_rank_0(context: Context, loop: LoopNode, head: ast.expr) -> None:
    """Broadcast the random draws in a test, and those that its names are made of."""
    script, names = context.script, mentioned(head)
    made = [
        one.value
        for one in script.inside(loop.body, ast.Assign, deep=False)
        if mentioned(*one.targets) & names
    ]
    for draw in {one: None for value in (head, *made) for one in draws(script.file, value)}:
        if draw in context.alike:
            continue
        context.alike.add(draw)
        context.around(draw, "rankup.broadcast(")
        context.done(draw, "what decides about a step is drawn by rank 0 (rankup.broadcast)")


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


def seeds_alike(context: Context) -> None:
    """A seed made of the clock or of the process is rank 0's on every rank."""
    script = context.script
    for call in script.all(ast.Call):
        if call_name(call) not in _SEEDS:
            continue
        for arg in given(call):
            values = [arg]
            if isinstance(arg, ast.Name | ast.Attribute):
                made = context.script.assigned(script.dotted(arg), script.scope(arg))
                values = [value for _, value in made]
            for value in values:
                own = any(
                    script.name(one.func).startswith(_OWN) for one in script.inside(value, ast.Call)
                )
                looped = any(isinstance(up, LoopNode) for up in script.above(value))
                if (
                    own
                    and value not in context.alike
                    and not (looped or _in_worker(context, value))
                ):
                    context.alike.add(value)
                    context.around(value, "rankup.broadcast(")
                    context.done(value, "this seed is rank 0's on every rank (rankup.broadcast)")


def _in_worker(context: Context, node: ast.AST) -> bool:
    """True of what runs in a data worker, which is no rank: a collective hangs there."""
    script = context.script
    starts = [one.value for one in script.all(ast.keyword) if one.arg == "worker_init_fn"]
    names = {script.dotted(one).split(".")[-1] for one in starts}
    return script.per_sample(node) or any(
        up in starts or (isinstance(up, Function) and (up.name in names or "worker" in up.name))
        for up in script.above(node)
    )


def seeds_in_a_pass(context: Context) -> None:
    """A seed that is set amid the batches makes the ranks draw alike from there on."""
    script = context.script
    for loop in context.training.loops:
        for call in script.inside(loop.node.body, ast.Call, deep=False) if loop.trains else ():
            seeding = script.name(call.func).startswith(("torch.", "numpy.random.", "random."))
            if seeding and call_name(call) in _SEEDS and given(call):
                context.leave(
                    call,
                    "from here on all ranks draw the same noise, for different samples: add the "
                    "rank to the seed, or seed before the loop",
                )


def clocks_that_steer(context: Context) -> None:
    """A clock that decides about the end of a training is rank 0's on every rank."""
    script, training = context.script, context.training
    for one in script.all(ast.If) + script.all(ast.While):  # type: ignore[operator]
        loops = [up for up in (one, *script.above(one)) if isinstance(up, LoopNode)]
        if not any(training.trains(up) for up in loops):
            continue
        made = [
            node.value
            for node in script.inside(script.scope(one), ast.Assign)
            if mentioned(*node.targets) & mentioned(one.test) and mentioned(*node.targets)
        ]
        ends = isinstance(one, ast.While) or steers(context, one)
        if ends and any(_reads_clock(context, node) for node in (one.test, *made)):
            context.alike.add(one.test)
            context.around(one.test, "rankup.broadcast(")
            context.done(one, "rank 0's clock decides for all ranks (rankup.broadcast)")


def _reads_clock(context: Context, node: ast.AST) -> bool:
    return any(
        context.script.name(call.func).startswith(("time.", "datetime."))
        for call in context.script.inside(node, ast.Call)
    )


def steers(context: Context, node: ast.AST) -> bool:
    """True where a branch or a loop decides about a backward, a step or the end of a loop."""
    script, training = context.script, context.training
    leaves = ast.Break | ast.Continue | ast.Return | ast.Raise
    blocks = _blocks(node)
    return any(
        isinstance(one, leaves) or (isinstance(one, ast.Call) and call_name(one) in _STEPS)
        for one in script.inside(blocks, ast.stmt, ast.Call, deep=False)
    ) or any(training.trains(one) for one in blocks)


def _blocks(node: ast.AST) -> list[ast.AST]:
    """The statements, or the values, that a test chooses from."""
    found: list[ast.AST] = []
    for name in ("body", "orelse"):
        block = getattr(node, name, [])
        found += block if isinstance(block, list) else [block]
    return found
