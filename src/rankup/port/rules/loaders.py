"""Each rank its part of the training data, in a new order each epoch; evaluation exact."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.flow import argument, call_name, first_argument, literal
from ...script.flow import given as arguments_of
from ...script.names import walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import words
from .facts import (
    by_hand,
    calls,
    calls_in,
    dealt,
    loops_in,
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


def not_dealt(file: File, script: Script) -> Iterator[Hit]:
    """RK111: every rank trains on everything."""
    for loop in loops_in(file, script.train_loops):
        for loader in loop.loaders:
            if sharded(script, loop, loader) or dealt(script, loader):
                continue
            if loader.confidence < 0.9 and not by_hand(script):
                continue
            if _iterable(script, loader.file, loader.node) is not None:
                continue  # RK117
            here = loader.file is file and isinstance(loader.node, ast.Call)
            place = loader.node if here else loop.iterated
            if place is not None:
                yield Hit(
                    place, "every rank would train on all of this data, the same again", _SHARD
                )


def no_set_epoch(file: File, script: Script) -> Iterator[Hit]:
    """RK112: the same order in every epoch."""
    if any(".set_epoch(" in one.text for one in script.files):
        return
    trains = {node for loader in script.train_loaders for _, node in samplers(script, loader)}
    for call, _ in calls(file, "DistributedSampler"):
        shuffle = argument(call, "shuffle", 3)
        if call in trains and literal(shuffle) is not False:
            yield Hit(
                call,
                "without set_epoch this sampler gives the same order in every epoch",
                "sampler.set_epoch(epoch) at the top of each epoch; rankup.shard needs none",
            )


def evaluation_padded(file: File, script: Script) -> Iterator[Hit]:
    """RK113: samples evaluated twice, or not at all."""
    trains = {node for loader in script.train_loaders for _, node in samplers(script, loader)}
    in_training = {loader.node for loader in script.train_loaders}
    for loader in script.eval_loaders:
        if loader.node in in_training or not isinstance(loader.node, ast.Call):
            continue
        for where, node in samplers(script, loader):
            if where is not file or not isinstance(node, ast.Call) or node in trains:
                continue
            if call_name(node) != "DistributedSampler":
                continue
            drops = true(argument(node, "drop_last", 5))
            if drops and any("Subset(" in one.text for one in script.files):
                continue  # the rest is evaluated apart
            what = "drops" if drops else "repeats"
            yield Hit(
                node,
                f"DistributedSampler {what} samples until all ranks have the same number: the "
                "evaluation is not of the data set",
                "`for batch in rankup.shard(loader):` neither pads nor drops, then rankup.mean",
            )
        if loader.file is file and true(argument(loader.node, "drop_last")):
            yield Hit(
                loader.node,
                "drop_last leaves the last samples out of the evaluation, more with more ranks",
                "remove drop_last=True here",
            )


def evaluated_by_all(file: File, script: Script) -> Iterator[Hit]:
    """RK119: every rank evaluates everything."""
    if script.distributed:
        return  # exact, if no faster: what a port leaves as it is
    for loop in loops_in(file, script.eval_loops):
        if guard(file, script, loop.node):
            continue
        for loader in loop.loaders:
            if loop.iterated is None or loader.confidence < 0.9:
                continue
            if sharded(script, loop, loader) or dealt(script, loader):
                continue
            yield Hit(
                loop.iterated,
                "every rank would evaluate all of this data: exact, and no faster than on one GPU",
                f"{_SHARD}; then rankup.total of what are sums over samples",
            )
            break


def iterable_not_split(file: File, script: Script) -> Iterator[Hit]:
    """RK117: every rank reads the same stream."""
    for loader in script.train_loaders:
        if loader.file is not file or dealt(script, loader):
            continue
        if any(sharded(script, loop) for loop in script.train_loops if loader in loop.loaders):
            continue
        made = _iterable(script, file, loader.node)
        if made is not None:
            yield Hit(
                loader.node,
                f"{made} is read in full by every rank: an IterableDataset has no positions to "
                "deal by",
                "let it give every world_size-th item from the rank on, as "
                "datasets.distributed.split_dataset_by_node does",
            )


def _iterable(script: Script, file: File, loader: ast.AST) -> str | None:
    """The name of the iterable data set that a loader reads, if it does."""
    if not isinstance(loader, ast.Call):
        return None
    given = argument(loader, "dataset", 0)
    if given is None:
        return None
    for origin in script.flow.origins(file, given):
        owner = script.flow.class_of(origin.file, origin.node)
        if owner and any(base.endswith("IterableDataset") for base in script.flow.bases(*owner)):
            return owner[1].name
        if (
            isinstance(origin.node, ast.Call)
            and call_name(origin.node) == "load_dataset"
            and true(argument(origin.node, "streaming"))
        ):
            return "a streaming data set"
    return None


def batch_size_in_shape(file: File, script: Script) -> Iterator[Hit]:
    """RK118: the last batch is shorter, and a rank's part of any batch is."""
    sizes: dict[str, bool] = {}
    for loader in script.train_loaders:
        if isinstance(loader.node, ast.Call):
            size = argument(loader.node, "batch_size", 1)
            if isinstance(size, (ast.Name, ast.Attribute)):
                sizes[loader.file.code(size)] = True
    if not sizes:
        return
    for loop in loops_in(file, script.train_loops):
        for call in calls_in(loop.node):
            dotted = file.names.called(call)
            reshapes = not dotted and call_name(call) in _RESHAPERS
            if not reshapes and not (dotted.startswith("torch.") and call_name(call) in _MAKERS):
                continue
            for node in walk(call):
                if isinstance(node, (ast.Name, ast.Attribute)) and file.code(node) in sizes:
                    yield Hit(
                        call,
                        f"a shape of {file.code(node)}: a rank's part of a batch is smaller",
                        "take the size from the batch: len(batch), x.size(0)",
                    )
                    break


def workers(file: File, script: Script) -> Iterator[Hit]:
    """RK178: a number of workers that fails or that all ranks have at once."""
    for call in file.names.all(ast.Call):
        if file.names.called(call) != "builtins.int":
            continue
        inner = first_argument(call)
        if inner is None or "SLURM_CPUS_PER_TASK" not in file.code(inner):
            continue
        safe = isinstance(inner, ast.Call) and len(arguments_of(inner)) > 1
        if not safe and not isinstance(inner, ast.BoolOp):
            yield Hit(
                call,
                "SLURM_CPUS_PER_TASK may be unset (srun does not set it without --cpus-per-task), "
                "and it counts the cores of a task, which all ranks of a node share",
                'int(os.environ.get("SLURM_CPUS_PER_TASK", 1)) // local_world_size',
            )
    for loader in (*script.train_loaders, *script.eval_loaders):
        if loader.file is file and isinstance(loader.node, ast.Call):
            given = argument(loader.node, "num_workers", 5)
            if (
                given is not None
                and not ranked(script, file, given)
                and any(
                    isinstance(one, ast.Call) and call_name(one) == "cpu_count"
                    for one in walk(given)
                )
            ):
                yield Hit(
                    given,
                    "every rank of a node would start a worker for each of its cores",
                    "divide by the ranks of a node: len(os.sched_getaffinity(0)) // "
                    "local_world_size",
                )


def effective_batch(file: File, script: Script) -> Iterator[Hit]:
    """RK172: whose batch size is it, a GPU's or the run's?"""
    if script.distributed:
        return
    for loader in script.train_loaders:
        if loader.file is not file or not isinstance(loader.node, ast.Call):
            continue
        size = argument(loader.node, "batch_size", 1)
        if size is not None and string(size) is None:
            yield Hit(
                loader.node,
                f"batch_size={file.code(size)}: with a batch per GPU, N ranks train on batches N "
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
