"""Each rank its part of the training data, in a new order each epoch; evaluation exact."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from ..tree import walk
from .facts import (
    by_hand,
    calls,
    calls_in,
    dealt,
    loops_in,
    ported,
    ranked,
    samplers,
    sharded,
    string,
    true,
)
from .guards import guard
from .rule import Hit, Rule

_SHARD = "`for batch in rankup.shard(loader):` gives each rank its part of every batch"
_MAKERS = words("ones zeros full empty rand randn randint arange tensor eye")
_RESHAPERS = words("view reshape expand new_ones new_zeros new_full")


def not_dealt(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK111: every rank trains on everything."""
    for loop in loops_in(source, roles.train_loops):
        for loader in loop.loaders:
            if sharded(roles, loop, loader) or dealt(roles, loader):
                continue
            if loader.confidence < 0.9 and not by_hand(roles):
                continue
            if _iterable(roles, loader.source, loader.node) is not None:
                continue  # RK117
            here = loader.source is source and isinstance(loader.node, cst.Call)
            place = loader.node if here else loop.iterated
            if place is not None:
                yield Hit(
                    place, "every rank would train on all of this data, the same again", _SHARD
                )


def no_set_epoch(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK112: the same order in every epoch."""
    if any(".set_epoch(" in one.text for one in roles.sources):
        return
    trains = {node for loader in roles.train_loaders for _, node in samplers(roles, loader)}
    for call, _ in calls(source, "DistributedSampler"):
        shuffle = argument(call, "shuffle", 3)
        if call in trains and not (isinstance(shuffle, cst.Name) and shuffle.value == "False"):
            yield Hit(
                call,
                "without set_epoch this sampler gives the same order in every epoch",
                "sampler.set_epoch(epoch) at the top of each epoch; rankup.shard needs none",
            )


def evaluation_padded(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK113: samples evaluated twice, or not at all."""
    trains = {node for loader in roles.train_loaders for _, node in samplers(roles, loader)}
    in_training = {loader.node for loader in roles.train_loaders}
    for loader in roles.eval_loaders:
        if loader.node in in_training or not isinstance(loader.node, cst.Call):
            continue
        for where, node in samplers(roles, loader):
            if where is not source or not isinstance(node, cst.Call) or node in trains:
                continue
            if call_name(node) != "DistributedSampler":
                continue
            drops = true(argument(node, "drop_last", 5))
            if drops and any("Subset(" in one.text for one in roles.sources):
                continue  # the rest is evaluated apart
            what = "drops" if drops else "repeats"
            yield Hit(
                node,
                f"DistributedSampler {what} samples until all ranks have the same number: the "
                "evaluation is not of the data set",
                "`for batch in rankup.shard(loader):` neither pads nor drops, then rankup.mean",
            )
        if loader.source is source and true(argument(loader.node, "drop_last")):
            yield Hit(
                loader.node,
                "drop_last leaves the last samples out of the evaluation, more with more ranks",
                "remove drop_last=True here",
            )


def evaluated_by_all(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK119: every rank evaluates everything."""
    if roles.distributed and not ported(roles):
        return  # correct, if slow
    for loop in loops_in(source, roles.eval_loops):
        if guard(source, roles, loop.node):
            continue
        for loader in loop.loaders:
            if loop.iterated is None or (loader.confidence < 0.9 and not ported(roles)):
                continue
            if sharded(roles, loop, loader) or dealt(roles, loader):
                continue
            yield Hit(
                loop.iterated,
                "every rank would evaluate all of this data",
                f"{_SHARD}; then rankup.mean(total, count)",
            )
            break


def iterable_not_split(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK117: every rank reads the same stream."""
    for loader in roles.train_loaders:
        if loader.source is not source or dealt(roles, loader):
            continue
        if any(sharded(roles, loop) for loop in roles.train_loops if loader in loop.loaders):
            continue
        made = _iterable(roles, source, loader.node)
        if made is not None:
            yield Hit(
                loader.node,
                f"{made} is read in full by every rank: an IterableDataset has no positions to "
                "deal by",
                "rankup.shard(loader) keeps this rank's part of each batch; cheaper is "
                "datasets.distributed.split_dataset_by_node",
            )


def _iterable(roles: Roles, source: Source, loader: cst.CSTNode) -> str | None:
    """The name of the iterable data set that a loader reads, if it does."""
    if not isinstance(loader, cst.Call):
        return None
    given = argument(loader, "dataset", 0)
    if given is None:
        return None
    for origin in roles.flow.origins(source, given):
        owner = roles.flow.class_of(origin.source, origin.node)
        if owner and any(base.endswith("IterableDataset") for base in roles.flow.bases(*owner)):
            return owner[1].name.value
        if (
            isinstance(origin.node, cst.Call)
            and call_name(origin.node) == "load_dataset"
            and true(argument(origin.node, "streaming"))
        ):
            return "a streaming data set"
    return None


def batch_size_in_shape(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK118: the last batch is shorter, and a rank's part of any batch is."""
    sizes: dict[str, bool] = {}
    for loader in roles.train_loaders:
        if isinstance(loader.node, cst.Call):
            size = argument(loader.node, "batch_size", 1)
            if isinstance(size, (cst.Name, cst.Attribute)):
                sizes[loader.source.code(size)] = True
    if not sizes:
        return
    for loop in loops_in(source, roles.train_loops):
        for call in calls_in(loop.node):
            dotted = source.index.called(call)
            reshapes = not dotted and call_name(call) in _RESHAPERS
            if not reshapes and not (dotted.startswith("torch.") and call_name(call) in _MAKERS):
                continue
            for node in walk(call):
                if isinstance(node, (cst.Name, cst.Attribute)) and source.code(node) in sizes:
                    yield Hit(
                        call,
                        f"a shape of {source.code(node)}: a rank's part of a batch is smaller",
                        "take the size from the batch: len(batch), x.size(0)",
                    )
                    break


def workers(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK178: a number of workers that fails or that all ranks have at once."""
    for call in source.index.all(cst.Call):
        if source.index.called(call) != "builtins.int" or not call.args:
            continue
        inner = call.args[0].value
        if "SLURM_CPUS_PER_TASK" not in source.code(inner):
            continue
        safe = isinstance(inner, cst.Call) and len(inner.args) > 1
        if not safe and not isinstance(inner, cst.BooleanOperation):
            yield Hit(
                call,
                "SLURM_CPUS_PER_TASK may be unset (srun does not set it without --cpus-per-task), "
                "and it counts the cores of a task, which all ranks of a node share",
                'int(os.environ.get("SLURM_CPUS_PER_TASK", 1)) // local_world_size',
            )
    for loader in (*roles.train_loaders, *roles.eval_loaders):
        if loader.source is source and isinstance(loader.node, cst.Call):
            given = argument(loader.node, "num_workers", 5)
            if (
                given is not None
                and not ranked(roles, source, given)
                and any(
                    isinstance(one, cst.Call) and call_name(one) == "cpu_count"
                    for one in walk(given)
                )
            ):
                yield Hit(
                    given,
                    "every rank of a node would start a worker for each of its cores",
                    "divide by the ranks of a node: len(os.sched_getaffinity(0)) // "
                    "local_world_size",
                )


def effective_batch(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK172: whose batch size is it, a GPU's or the run's?"""
    if roles.distributed:
        return
    for loader in roles.train_loaders:
        if loader.source is not source or not isinstance(loader.node, cst.Call):
            continue
        size = argument(loader.node, "batch_size", 1)
        if size is not None and string(size) is None:
            yield Hit(
                loader.node,
                f"batch_size={source.code(size)}: with a batch per GPU, N ranks train on batches N "
                "times as large",
                "rankup.shard keeps it the size of the whole batch; `rankup port --batch per-gpu` "
                "says what becomes of the learning rate",
            )
            return


RULES = (
    Rule("RK111", "data-not-dealt", "error", not_dealt),
    Rule("RK112", "no-set-epoch", "error", no_set_epoch),
    Rule("RK113", "evaluation-padded", "error", evaluation_padded),
    Rule("RK117", "iterable-not-split", "error", iterable_not_split),
    Rule("RK118", "batch-size-in-shape", "warning", batch_size_in_shape),
    Rule("RK119", "evaluated-by-all", "warning", evaluated_by_all),
    Rule("RK178", "worker-count", "warning", workers),
    Rule("RK172", "effective-batch", "warning", effective_batch),
)
