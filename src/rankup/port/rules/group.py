"""The process group: joined, left, its names used as they are, its ranks not mixed up."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from ..tree import walk
from .facts import anywhere, calls, loops_in
from .guards import guard
from .rule import Hit, Rule

# Names of the runtime that torch has not.
_OURS = words(
    "save0 print0 setup is_root_process rank0_first save_full_model save_sharded_model "
    "load_full_model load_sharded_model shard wrap quiet log_metrics Deadline Order"
)
_COLLECTIVES = words(
    "barrier broadcast broadcast_object_list all_reduce all_gather all_gather_object "
    "reduce_scatter all_gather_into_tensor gather_object scatter monitored_barrier save_full_model "
    "save_sharded_model"
)
_GLOBAL_RANK = re.compile(r"get_rank\(\)|['\"](?:RANK|SLURM_PROCID)['\"]")
_LOCAL_RANK = re.compile(r"['\"](?:LOCAL_RANK|SLURM_LOCALID)['\"]|get_node_local_rank\(\)")
_WRAPS_ROUND = re.compile(r"%|device_count|local", re.IGNORECASE)


def no_group(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK101: training that never joins the other ranks."""
    if "rankup" not in roles.runtimes and roles.frameworks:
        for call in source.index.all(cst.Call):
            if source.index.called(call).startswith("rankup."):
                yield Hit(
                    call,
                    "uses rankup, but never joins the ranks with it: each takes itself for rank 0",
                    "rankup.setup() behind the imports",
                )
                return
    if roles.distributed:
        return
    if "fastai" in roles.frameworks:
        for call, _ in calls(source, "fit", "fine_tune", "fit_one_cycle", "fit_flat_cos"):
            yield Hit(
                call,
                "fastai trains here on each rank alone",
                "put it into `with learn.distrib_ctx():`; `rankup port` does",
            )
            return
    if roles.frameworks:
        return
    for loop in loops_in(source, roles.train_loops[:1]):
        yield Hit(
            loop.node,
            "trains, but never joins a process group: each rank would train alone",
            "`rankup port` adds `world = rankup.setup()`",
        )


def not_destroyed(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK102: the group of torch.distributed is not taken down at the end."""
    if anywhere(roles, "destroy_process_group", "cleanup_distributed"):
        return
    if any("destroy_process_group" in one.text for one in roles.sources):
        return
    for call, dotted in calls(source, "init_process_group"):
        if not dotted.startswith("rankup"):
            yield Hit(
                call,
                "joins a process group that is never destroyed: NCCL warns, or hangs at the end",
                "call torch.distributed.destroy_process_group() at the end; rankup.setup() does",
            )


def ranks_mixed_up(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK107: the rank among all where the one on this node belongs, or the reverse."""
    for call in source.index.all(cst.Call):
        name = call_name(call)
        for given in _devices_given(call, name):
            code = _text(source, roles, given)
            if _GLOBAL_RANK.search(code) and not _WRAPS_ROUND.search(code):
                yield Hit(
                    given,
                    "the rank among all is used as the number of a GPU: there is none from the "
                    "second node on",
                    "use the local rank: LOCAL_RANK, or `world.local_rank` of rankup.setup()",
                )
        if name in ("DistributedSampler", "init_process_group"):
            rank = argument(call, "rank")
            if rank is not None:
                code = _text(source, roles, rank)
                if _LOCAL_RANK.search(code) or source.code(rank).lower().endswith("local_rank"):
                    if _GLOBAL_RANK.search(code) or "node" in code:
                        continue
                    yield Hit(
                        rank,
                        "the rank on this node serves as that among all: nodes repeat each other",
                        "use the global rank: RANK, or torch.distributed.get_rank()",
                    )


def _devices_given(call: cst.Call, name: str) -> list[cst.BaseExpression]:
    """The expressions in a call that choose a GPU."""
    found: list[cst.BaseExpression | None] = []
    if name in ("set_device", "cuda"):
        found.append(argument(call, "device", 0))
    elif name == "device":
        found += [argument(call, "type", 0), argument(call, "index", 1)]
    elif name == "to":
        found.append(argument(call, "device", 0))
    elif name in ("DistributedDataParallel", "DDP"):
        ids = argument(call, "device_ids", 1)
        if isinstance(ids, cst.List):
            found += [one.value for one in ids.elements]
    return [one for one in found if one is not None]


def _text(source: Source, roles: Roles, node: cst.BaseExpression) -> str:
    """The code of a rank-like expression, and of the names in it."""
    parts = [source.code(node)]
    for inner in walk(node):
        if isinstance(inner, cst.Name):
            for origin in roles.flow.origins(source, inner):
                made = origin.node
                if isinstance(made, cst.Call) and call_name(made) == "setup":
                    parts.append(_of_setup(source, inner))
                elif isinstance(made, (cst.Call, cst.Subscript)) and (
                    call_name(made) != "device" if isinstance(made, cst.Call) else True
                ):
                    parts.append(origin.source.code(made))
    return " ".join(parts)


def _of_setup(source: Source, name: cst.Name) -> str:
    """Which of the four values of `setup()` a name is."""
    _, bindings = source.index.bindings(name.value, source.index.scope(name))
    positions = {one.path[0] for one in bindings if one.path}
    return {0: "'LOCAL_RANK'", 1: "get_rank()"}.get(min(positions, default=9), "")


def setup_unpacked(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK108: `setup()` gives four values."""
    for call, dotted in calls(source, "setup"):
        if dotted != "rankup.setup":
            continue
        assign = source.index.parents.get(call)
        if not isinstance(assign, cst.Assign):
            continue
        for target in (one.target for one in assign.targets):
            if isinstance(target, (cst.Tuple, cst.List)):
                starred = any(isinstance(one, cst.StarredElement) for one in target.elements)
                number = len(target.elements)
                if number != 4 and not (starred and number <= 5):
                    yield Hit(
                        target,
                        f"setup() gives local_rank, rank, device and world_size, and is unpacked "
                        f"into {number} names",
                        "take all four, or `setup()[:3]` for the first three",
                    )


def ours_on_torch(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK109: `torch.save0` does not exist; `save0` does."""
    for node in source.index.all(cst.Attribute):
        if node.attr.value in _OURS and source.index.dotted(node).startswith("torch."):
            base = source.index.dotted(node.value)
            if base in ("torch", "torch.distributed"):
                yield Hit(
                    node,
                    f"torch has no {node.attr.value}: it is rankup's",
                    f"write rankup.{node.attr.value}(…)",
                )


def one_rank_collective(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK182: a collective that only one rank comes to."""
    if not roles.distributed:
        return
    for call in source.index.all(cst.Call):
        dotted = source.index.called(call)
        name = call_name(call)
        if name not in _COLLECTIVES and dotted != "rankup.mean":
            continue
        if not dotted.startswith(("torch.distributed", "rankup", "distributed_utils")):
            continue
        if guard(source, roles, call) and not _both_ways(source, roles, call, name):
            yield Hit(
                call,
                f"{name} waits for all ranks, and only some come here: the job hangs",
                "move it out of the condition; let only what writes stand in it",
            )


def _both_ways(source: Source, roles: Roles, call: cst.Call, name: str) -> bool:
    """Whether the other ranks meet it elsewhere (`if rank != 0: barrier()`, then rank 0's)."""
    function = source.index.function(call) or source.module
    other = [
        one
        for one in walk(function)
        if isinstance(one, cst.Call) and one is not call and call_name(one) == name
    ]
    mine = guard(source, roles, call)
    return any(guard(source, roles, one) not in ("", mine) for one in other)


RULES = (
    Rule("RK101", "no-process-group", "error", no_group, frameworks=True),
    Rule("RK102", "process-group-not-destroyed", "warning", not_destroyed),
    Rule("RK107", "ranks-mixed-up", "error", ranks_mixed_up),
    Rule("RK108", "setup-unpacked", "error", setup_unpacked, frameworks=True),
    Rule("RK109", "runtime-name-on-torch", "error", ours_on_torch, frameworks=True),
    Rule("RK182", "collective-on-one-rank", "error", one_rank_collective),
)
