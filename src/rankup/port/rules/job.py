"""Schedules for the steps of many ranks, and ranks that stop alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ...script.effects import trains
from ...script.flow import argument, call_name, given, literal, method_calls
from ...script.names import calls_in, walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import EXITS, STEP_SCHEDULES, words
from ..rewrite.context import Context
from .facts import (
    calls,
    ends,
    is_reduction,
    loops_in,
    names_rank,
    ranked,
    sharded_loader,
    string,
    with_origins,
)
from .rule import Hit, rule

# Schedules of which an argument is a number of steps.
_COUNTING = words("StepLR MultiStepLR CosineAnnealingLR CosineAnnealingWarmRestarts LinearLR")
# Exceptions by which a script asks something; an interrupt comes to all ranks.
_EXPECTED = words(
    "StopIteration ImportError KeyError ValueError FileNotFoundError KeyboardInterrupt"
)


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
