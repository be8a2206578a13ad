"""This rank's place in the mesh, and the groups it talks in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..runtime.hang import recorder
from ..runtime.world import World
from .context import SharedSequence, WholeSequence
from .layout import AXES, Layout


def group_among(parts: Sequence[Sequence[int]], name: str) -> dist.ProcessGroup | None:
    """The group of those of `parts`, which share no rank, that this rank is in; None without one.

    Call on all ranks, with the same parts. It takes as long for a thousand groups as for one: for
    `new_group` all ranks meet once per group.
    """
    if getattr(dist.group.WORLD, "bound_device_id", None) is not None:  # NCCL's are split off
        ranks = [sorted(part) for part in parts]
        return dist.split_group(split_ranks=ranks, timeout=_patience(), group_desc=name)
    own = [sorted(part) for part in parts if dist.get_rank() in part]
    if not own:
        return None
    return dist.new_group(
        own[0], timeout=_patience(), use_local_synchronization=True, group_desc=name
    )


def _patience() -> timedelta | None:
    """Return how long collectives of all ranks wait, where that was set."""
    given = recorder.timeout(dist.group.WORLD)
    return timedelta(seconds=given) if given else None


class Mesh:
    """A layout on the ranks that are there.

    Making one with several ranks in parts is a collective: call on all ranks.

    Args:
        apart: copies of the model take their steps by themselves, and meet now and then.

    Attributes:
        layout: sizes of the axes.
        world: this process among all.
        pp, dp_replicate, dp_shard, cp, tp: where this rank stands on each axis.
        data_rank, data_size: which part of a global batch this rank computes, of how many.
        together: a forward is a collective, which no rank may enter alone.
        copies: the ranks that hold what this one holds, in other copies; None for all ranks.
        sequence: the part of each sequence that this rank has.
        at_step: sizes of the axes over which a step is one: all, or those of a copy.
        step_group: the ranks that take a step together; None for all.
        alike: how many of them hold the same of a parameter that is not cut.
    """

    def __init__(self, layout: Layout, world: World, apart: bool = False) -> None:
        if layout.world_size != world.world_size:
            raise ValueError(f"a layout of {layout.world_size} ranks on {world.world_size}")
        self.layout, self.world, self.apart = layout, world, apart
        self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp = layout.coordinates(world.rank)
        self.at_step = layout.copy if apart else layout
        self.data_rank, self.data_size = layout.data_rank(world.rank), layout.data_size
        self.together = not layout.only_replicas
        # The groups of `device_mesh` are made by all ranks together, here.
        self.copies = self.group("dp_replicate") if self.together else None
        self.sequence = WholeSequence()
        if layout.cp > 1 and (context := group_among(self.lines("cp"), "mesh_cp")):
            self.sequence = SharedSequence(self.cp, layout.cp, context)
        self.step_group = self._group_of_my_copy() if apart else None
        self.alike = self.at_step.world_size // self.at_step.pp if self.together else 1

    def _group_of_my_copy(self) -> dist.ProcessGroup | None:
        """The ranks that share this copy of the model; None where it is one rank, or all."""
        if 1 in (self.at_step.world_size, self.layout.dp_replicate):
            return None
        members: dict[int, list[int]] = {}
        for rank in range(self.layout.world_size):
            members.setdefault(self.layout.coordinates(rank)[1], []).append(rank)
        return group_among(list(members.values()), "mesh_copy")

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """torch's mesh, over whose axes parameters lie; its groups are as patient as that of all.

        Ranks that share a sequence are on its axis `dp_shard`: what they hold, and how gradients
        add up, is the same as where ranks share a copy and have sequences of their own.
        """
        layout, names = self.layout, ("pp", "dp_replicate", "dp_shard", "tp")
        sizes = (layout.pp, layout.dp_replicate, layout.shard_size, layout.tp)
        made = init_device_mesh(self.world.device.type, sizes, mesh_dim_names=names)
        if patience := _patience():
            for axis, size in zip(names, sizes, strict=True):
                if size > 1:
                    dist.distributed_c10d._set_pg_timeout(patience, made.get_group(axis))
        return made

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one on `axis` of `device_mesh` alone."""
        return self.device_mesh.get_group(axis)

    def lines(self, axis: str) -> list[list[int]]:
        """The global ranks of every group along `axis`."""
        where = AXES.index(axis)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.layout.world_size):
            place = self.layout.coordinates(rank)
            groups.setdefault((*place[:where], *place[where + 1 :]), []).append(rank)
        return list(groups.values())
