"""The process group: joined, left, its ranks not mixed up, its collectives met by all of them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from ...script.flow import argument, call_name, receiver
from ...script.loops import taken_from
from ...script.names import calls_in, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import COLLECTIVES, OUR_COLLECTIVES, words
from ..match import Pattern, calls
from ..rewrite.training import training_in
from .facts import (
    anywhere,
    guard,
    guards,
    loops_in,
    true,
)
from .model import in_fsdp
from .rule import Hit, rule

# Names of the runtime that torch has not.


_COLLECTIVES = (COLLECTIVES | OUR_COLLECTIVES) - {"rank0_first"}
# Methods that wait for all ranks, with the classes of which an object has them.
_OF_OBJECTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        words("gather gather_for_metrics reduce pad_across_processes wait_for_everyone"),
        words("Accelerator"),
    ),
    **dict.fromkeys(words("all_gather all_reduce barrier broadcast"), words("Fabric")),
    "state_dict": words("FullyShardedDataParallel FSDP"),
}
_JOINS, _SETS_UP = Pattern("__.init_process_group()"), Pattern("rankup.setup()")
_JOINING = ("torch.distributed", "rankup", "distributed_utils")
_GLOBAL_RANK = re.compile(r"get_rank\(\)|['\"](?:RANK|SLURM_PROCID)['\"]")
_LOCAL_RANK = re.compile(r"['\"](?:LOCAL_RANK|SLURM_LOCALID)['\"]|get_node_local_rank\(\)")
_WRAPS_ROUND = re.compile(r"%|device_count|local", re.IGNORECASE)


@rule("RK101", "error", "no process group", frameworks=True, by_port=True)
def no_group(file: File, script: Script) -> Iterator[Hit]:
    """A training that never joins the other ranks; for fastai a `Learner` that trains outside of
    `distrib_ctx`; beside a framework a use of rankup without `rankup.setup()`.

    Every rank would train a model of its own on all of the data, and the log looks right.

    ```diff
    -model = Net().cuda()
    -for x, y in loader:
    -    F.cross_entropy(model(x.cuda()), y.cuda()).backward()
    +local_rank, rank, device, world_size = rankup.setup()
    +model = rankup.wrap(Net().to(device))
    +for x, y in rankup.shard(loader):
    +    F.cross_entropy(model(x.to(device)), y.to(device)).backward()
    ```

    Adds `rankup.setup()` after the imports; for fastai `with learn.distrib_ctx():`.
    """
    if "rankup" not in script.runtimes and script.frameworks:
        for call in file.names.all(ast.Call):
            if file.names.called(call).startswith("rankup."):
                yield Hit(
                    call,
                    "uses rankup, but never joins the ranks with it: each takes itself for rank 0",
                    "rankup.setup() behind the imports",
                )
                return
    if script.distributed:
        return
    if "fastai" in script.frameworks:
        for call, _ in calls(file, "fit", "fine_tune", "fit_one_cycle", "fit_flat_cos"):
            yield Hit(
                call,
                "fastai trains here on each rank alone",
                "put it into `with learn.distrib_ctx():`; `rankup port` does",
            )
            return
    if script.frameworks:
        return
    for loop in loops_in(file, script.train_loops[:1]):
        yield Hit(
            loop.node,
            "trains, but never joins a process group: each rank would train alone",
            "`rankup port` adds `world = rankup.setup()`",
        )


@rule("RK102", "warning", "process group never destroyed")
def not_destroyed(file: File, script: Script) -> Iterator[Hit]:
    """`init_process_group` without a `destroy_process_group` anywhere.

    NCCL warns of leaked resources, and ranks may hang in their last collective.

    ```diff
     torch.distributed.init_process_group("nccl")
    +try:
    +    main()
    +finally:
    +    torch.distributed.destroy_process_group()
    ```

    Nothing: `rankup.setup()` leaves the group when the process ends.
    """
    leaves = ("destroy_process_group", "cleanup_distributed")
    if any(name in one.text for name in leaves for one in script.files):
        return
    for match in _JOINS.find(file):
        if not file.names.called(match.call).startswith("rankup"):
            yield Hit(
                match.call,
                "joins a process group that is never destroyed: NCCL warns, or hangs at the end",
                "call torch.distributed.destroy_process_group() at the end; rankup.setup() does",
            )


@rule("RK107", "error", "rank and local rank mixed up")
def ranks_mixed_up(file: File, script: Script) -> Iterator[Hit]:
    """The global rank as the number of a GPU; the local rank as `rank=` of a sampler or a group.

    Both are equal on one node. On the second one rank 4 looks for a fifth GPU, or rank 0's data are
    read once per node.

    ```diff
     torch.distributed.init_process_group("nccl")
    -rank = torch.distributed.get_rank()
    -torch.cuda.set_device(rank)
    +local_rank = int(os.environ["LOCAL_RANK"])
    +torch.cuda.set_device(local_rank)
    ```

    Nothing: a ported script has no such numbers.
    """
    for call in file.names.all(ast.Call):
        name = call_name(call)
        for given in _devices_given(call, name):
            code = _text(file, script, given)
            if _GLOBAL_RANK.search(code) and not _WRAPS_ROUND.search(code):
                yield Hit(
                    given,
                    "the rank among all as the number of a GPU: there is none from node 2 on",
                    "use the local rank: LOCAL_RANK, or `world.local_rank` of rankup.setup()",
                )
        rank = argument(call, "rank")
        if rank is not None and name in ("DistributedSampler", "init_process_group"):
            code = _text(file, script, rank)
            local = _LOCAL_RANK.search(code) or file.code(rank).lower().endswith("local_rank")
            if local and not _GLOBAL_RANK.search(code) and "node" not in code:
                yield Hit(
                    rank,
                    "the rank on this node serves as that among all: nodes repeat each other",
                    "use the global rank: RANK, or torch.distributed.get_rank()",
                )


def _devices_given(call: ast.Call, name: str) -> list[ast.expr]:
    """The expressions in a call that choose a GPU."""
    found: list[ast.expr | None] = []
    if name in ("set_device", "cuda", "to"):
        found.append(argument(call, "device", 0))
    elif name == "device":
        found += [argument(call, "type", 0), argument(call, "index", 1)]
    elif name in ("DistributedDataParallel", "DDP"):
        found += getattr(argument(call, "device_ids", 1), "elts", [])
    return [one for one in found if one is not None]


def _text(file: File, script: Script, node: ast.expr) -> str:
    """The code of a rank-like expression, and of the names in it."""
    parts = [file.code(node)]
    for inner in (one for one in walk(node) if isinstance(one, ast.Name)):
        for origin in script.flow.origins(file, inner):
            name = call_name(origin.node) if isinstance(origin.node, ast.Call) else ""
            if name == "setup":
                parts.append(_of_setup(file, inner))
            elif isinstance(origin.node, ast.Call | ast.Subscript) and name != "device":
                parts.append(origin.file.code(origin.node))
    return " ".join(parts)


def _of_setup(file: File, name: ast.Name) -> str:
    """The variable or the call that one of the four values of `setup()` stands for."""
    _, bindings = file.names.bindings(name.id, file.names.scope(name))
    positions = {one.path[0] for one in bindings if one.path}
    return {0: "'LOCAL_RANK'", 1: "get_rank()"}.get(min(positions, default=9), "")


@rule("RK182", "error", "a collective on one rank", frameworks=True)
def one_rank_collective(file: File, script: Script) -> Iterator[Hit]:
    """`all_reduce`, `barrier`, `rankup.mean` under a condition on the rank; `gather` of an
    `Accelerator` or a `Fabric` there; the `state_dict()` of a model in FullyShardedDataParallel,
    which puts the ranks' parts together.

    It waits for all ranks, and only some come: the job hangs.

    ```diff
     rank = rankup.setup().rank
    +mean = rankup.mean(total, seen)
     if rank == 0:
    -    print(rankup.mean(total, seen))
    +    print(mean)
    ```

    Nothing: it never puts a collective under a condition.
    """
    if not script.distributed and not script.frameworks:
        return
    for call in file.names.all(ast.Call):
        name = call_name(call)
        if not _waits_for_all(file, script, call, name):
            continue
        ranks = guards(file, script, call) - {""}
        if "others" in ranks and len(ranks) > 1:
            continue  # each meets it on a way of its own
        if ranks and not _both_ways(file, script, call, name):
            yield Hit(
                call,
                f"{name} waits for all ranks, and only some come here: the job hangs",
                "move it out of the condition; let only what writes stand in it",
            )


def _waits_for_all(file: File, script: Script, call: ast.Call, name: str) -> bool:
    """True of a collective: of torch.distributed and rankup, of a framework, of a sharded model."""
    if name in _COLLECTIVES and file.names.called(call).startswith(_JOINING):
        return True
    owner = receiver(call)
    if owner is None or name not in _OF_OBJECTS:
        return False
    if name == "state_dict":
        return in_fsdp(script, file, owner)
    return any(
        isinstance(one.node, ast.Call) and call_name(one.node) in _OF_OBJECTS[name]
        for one in script.flow.origins(file, owner)
    )


def _both_ways(file: File, script: Script, call: ast.Call, name: str) -> bool:
    """True where the other ranks meet it elsewhere (`if rank != 0: barrier()`, then rank 0's)."""
    own = guard(file, script, call)
    here = calls_in(file.names.function(call) or file.tree)
    other = [one for one in here if one is not call and call_name(one) == name]
    return any(guard(file, script, one) not in ("", own) for one in other)


@rule("RK183", "error", "a collective in a loop that ranks go round unequally often")
def waits_in_uneven_loop(file: File, script: Script) -> Iterator[Hit]:
    """A collective, such as `rankup.batch_mean` or `all_reduce`, in an evaluation over a loader
    that `rankup.shard` has sharded, or in a loop that trains *and* evaluates.

    Nothing is padded in an evaluation: a rank may have a batch less, and leave the loop while the
    others wait for it. For a loop that serves both, `rankup.shard(loader, train=True)` lets all
    ranks go round equally often, with samples of weight zero that `batch_mean` and `batch_sum`
    leave out.

    ```diff
     valid = rankup.shard(DataLoader(valid_set, batch_size=64))

     @torch.no_grad()
     def evaluate(model):
         right = 0
         for x, y in valid:
    -        right += rankup.all_reduce((model(x).argmax(1) == y).sum().item())
    -    return right
    +        right += (model(x).argmax(1) == y).sum().item()
    +    return rankup.total(right)
    ```

    Puts evaluations together behind the loop, and shards by `train=True` what serves both.
    """
    if anywhere(script, "parallelize"):
        return  # where a forward needs all ranks, all of them go round equally often
    for loop in loops_in(file, script.eval_loops):
        if any(not true(argument(call, "train")) for call in _shards(script, loop)):
            yield from _waiting(file, list(calls_in(*loop.body)))
    both = [one.node for one in training_in(script, file).loops if one.unclear]
    for loop in loops_in(file, script.train_loops):
        if loop.node in both and _uneven(script, loop):
            always = [call for call in calls_in(*loop.body) if not _conditional(loop, call)]
            yield from _waiting(file, always)


@rule("RK184", "error", "a stand-in that is counted")
def stand_ins_counted(file: File, script: Script) -> Iterator[Hit]:
    """An evaluation over a loader that `rankup.shard(loader, train=True)` has sharded, without
    `batch_mean` or `batch_sum` in it.

    A rank for which nothing is left of a short batch gets a sample of another one. It has weight
    zero in `batch_mean` and `batch_sum`; added up by hand it counts twice.

    ```diff
     valid = rankup.shard(DataLoader(valid_set, batch_size=64), train=True)
     right = 0
     with torch.no_grad():
    -    for x, y in valid:
    +    for x, y in rankup.shard(valid, train=False):
             right += (model(x).argmax(1) == y).sum().item()
     print0(rankup.total(right))
    ```

    Shards by `train=False` for a loop that evaluates, where another trains on the loader.
    """
    if anywhere(script, "parallelize"):
        return
    for loop in loops_in(file, script.eval_loops):
        shards = _shards(script, loop)
        if not shards or not all(true(argument(call, "train")) for call in shards):
            continue
        inside = {file.names.called(call) for call in calls_in(*loop.body)}
        if not inside & {"rankup.batch_sum", "rankup.batch_mean"} and loop.iterated is not None:
            yield Hit(
                loop.iterated,
                "sharded with train=True: the stand-in sample of a short batch is counted here",
                "`for batch in rankup.shard(loader, train=False):`, or rankup.batch_sum in it",
            )


def _waiting(file: File, calls: list[ast.Call]) -> Iterator[Hit]:
    for call in calls:
        dotted = file.names.called(call)
        if call_name(call) in _COLLECTIVES and dotted.startswith(("rankup.", "torch.distributed.")):
            yield Hit(
                call,
                f"{call_name(call)} waits for all ranks, and one may have a batch less: a hang",
                "call it behind the loop (rankup.total), or rankup.shard(loader, train=True)",
            )
            return


def _shards(script: Script, loop: Loop) -> list[ast.Call]:
    """The calls of `rankup.shard` that deal what a loop goes over."""
    found: dict[ast.Call, None] = {}
    index = loop.file.names
    for expression in taken_from(loop.file, loop.node):
        around = list(itertools.takewhile(lambda up: up is not loop.node, index.up(expression)))
        if any(isinstance(up, ast.IfExp) for up in (expression, *around)):
            continue  # `shard(loader) if train else loader`: sharded where it trains alone
        through = [(loop.file, up) for up in around if isinstance(up, ast.Call)]
        for origin in script.flow.origins(loop.file, expression):
            through += [(where, call) for where, call in origin.through]
        for where, call in through:
            if where.names.called(call) == "rankup.shard":
                found[call] = None
    return list(found)


def _uneven(script: Script, loop: Loop) -> bool:
    """True where one of the loaders is sharded as an evaluation where a loop evaluates."""
    shards = _shards(script, loop)
    loose = [call for call in shards if not true(argument(call, "train"))]
    # What shuffles is trained on, as a rule; where nothing else is there it is evaluated, too.
    still = [call for call in loose if not _shuffles(call)]
    return bool(still) or (bool(loose) and len(loose) == len(shards))


def _shuffles(call: ast.Call) -> bool:
    return any(true(argument(inner, "shuffle", 2)) for inner in calls_in(call))


def _conditional(loop: Loop, call: ast.AST) -> bool:
    """True where a call in a loop is passed over where a condition says so."""
    index = loop.file.names
    inner = itertools.takewhile(lambda up: up is not loop.node, index.up(call))
    if any(isinstance(up, ast.If | ast.IfExp) for up in inner):
        return True
    line = loop.file.line(call)[0]
    return any(
        isinstance(one, ast.Continue) and loop.file.line(one)[0] < line for one in walk(*loop.body)
    )
