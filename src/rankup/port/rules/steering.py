"""The steps of a training, which all ranks make together, and the schedules that count them.

Ranks that go different ways meet no more: at a step, at the end of a loop, at a collective.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ...script.effects import trains
from ...script.flow import argument, call_name, given, literal, method_calls
from ...script.names import calls_in, mentioned, walk
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import EXITS, SEEDS, STEP_SCHEDULES, words
from ..match import calls
from ..rewrite.context import Context
from ..rewrite.script import ForNode
from ..rewrite.training import Training, training_in
from .chance import drawn_for_samples, draws, of_process, one_seed, own_generator
from .facts import (
    ends,
    is_reduction,
    loops_in,
    names_rank,
    ported,
    ranked,
    sharded_loader,
    shares,
    string,
    with_origins,
)
from .rule import Hit, rule

_SAME = "all ranks draw the same, for different samples, from a generator of its own"
_APART = "add the rank to its seed, or draw without it"
# Schedules of which an argument is a number of steps.
_COUNTING = words("StepLR MultiStepLR CosineAnnealingLR CosineAnnealingWarmRestarts LinearLR")
# Exceptions by which a script asks something; an interrupt comes to all ranks.
_EXPECTED = words(
    "StopIteration ImportError KeyError ValueError FileNotFoundError KeyboardInterrupt"
)


@rule("RK186", "error", "each rank decides about a step by itself")
def decided_alone(file: File, script: Script) -> Iterator[Hit]:
    """A random draw or the clock in a test of a training loop, or in its number of rounds, that
    decides whether a batch is passed over, or when the loop ends.

    Each rank draws numbers of its own and has a clock of its own: those that step unequally often
    wait for each other for ever.

    ```diff
     rankup.setup()
     for x, y in rankup.shard(loader):
    -    if random.random() < 0.1:
    +    if rankup.broadcast(random.random() < 0.1):
             continue
         F.cross_entropy(model(x), y).backward()
    ```

    Puts `rankup.broadcast` around the test: it is rank 0's on every rank.
    """
    if script.distributed and not ported(script):
        return  # a script of its own seeds: its ranks may draw alike
    training = training_in(script, file)
    for node in _own(training):
        head = node.iter if isinstance(node, ForNode) else node.test
        drawn = list(draws(file, head)) if isinstance(node, ForNode) else []
        head = drawn[0] if drawn else head  # `range(random.randint(1, 3))`
        yield Hit(
            head,
            "decides about a step, and each rank draws, or reads its clock, for itself",
            "let rank 0 decide for all: rankup.broadcast(…)",
            partial(rank_0_decides, head=head),
        )


def rank_0_decides(context: Context, head: ast.expr) -> str:
    context.broadcast(head)
    return "rank 0 decides for all ranks about a step (rankup.broadcast)"


def _own(training: Training) -> Iterator[ast.If | ast.While | ast.For | ast.AsyncFor]:
    """The branches and loops of a training that go by a draw or by the clock."""
    source, file = training.script, training.script.file
    seen: set[ast.AST] = set()
    for one in source.inside(source.tree, ast.If, ast.While, ast.For, ast.AsyncFor):
        assert isinstance(one, ast.If | ast.While | ForNode)
        loops = [up for up in (one, *source.above(one)) if isinstance(up, LoopNode)]
        trained = [up for up in loops if training.trains(up)]
        if not trained or one in seen:
            continue
        head = one.iter if isinstance(one, ForNode) else one.test
        if isinstance(one, ForNode) and (call_name_of(head) != "range" or one is trained[-1]):
            continue
        names = mentioned(head)
        made = [
            inner.value
            for inner in source.inside(source.scope(one).body, ast.Assign, deep=False)
            if mentioned(*inner.targets) & names
        ]
        by_draw = [value for value in (head, *made) if any(True for _ in draws(file, value))]
        by_clock = [value for value in (head, *made) if of_process(file, value)]
        decides = isinstance(one, LoopNode) or steers(training, one) or _runs_model(training, one)
        agreed = any(shared(file, value) for value in (head, *by_draw, *by_clock))
        if decides and (by_draw or by_clock) and not agreed:
            seen.add(one)
            yield one


def call_name_of(node: ast.AST) -> str:
    """The last word of what a call runs; empty of what is no call."""
    return call_name(node) if isinstance(node, ast.Call) else ""


def _runs_model(training: Training, node: ast.If | ast.While | ast.For | ast.AsyncFor) -> bool:
    """True where a branch decides which models take part in a step, and in its exchange."""
    calls = training.script.inside(node.body, ast.Call, deep=False)
    return any(training.runs_model(training.script, call) for call in calls)


def steers(training: Training, node: ast.If | ast.While) -> bool:
    """True where a branch decides about a backward, a step, or the end of a loop of steps."""
    source = training.script
    for one in source.inside([*node.body, *node.orelse], ast.stmt, ast.Call, deep=False):
        if isinstance(one, ast.Break | ast.Continue):
            ends = next((up for up in source.above(one) if isinstance(up, LoopNode)), node)
            if training.trains(ends):
                return True
        elif isinstance(one, ast.Return | ast.Raise) or (
            isinstance(one, ast.Call)
            and (call_name(one) in EXITS | {"step"} or training.trains(one))
        ):
            return True
    return False


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
                    partial(_put_together, test=test.test),
                )


def _put_together(context: Context, test: ast.expr) -> str | None:
    """Nothing where all ranks decide together already, as by the loss behind its backward."""
    around = set(context.script.above(test))
    here = [one for one in context.regions if one.where in around]
    alike = bool(here) and not any(one.locals(test) for one in here)
    return "" if alike or context.needs_all(test) else None


def _leaves(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(one, (ast.Break, ast.Continue, ast.Return))
        or (isinstance(one, ast.Call) and call_name(one) in EXITS)
        for one in walk(*body)
    )


def shared(file: File, value: ast.AST) -> bool:
    """True of what has a collective in it."""
    return any(isinstance(one, ast.Call) and shares(file, one) for one in walk(value))


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
    heads = {
        node
        for one in _own(training)
        for node in walk(one.iter if isinstance(one, ForNode) else one.test)
    }
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
            above = [up for up in file.names.up(call) if isinstance(up, ast.Call)]
            if alike and call not in heads and not any(shares(file, up) for up in above):
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
