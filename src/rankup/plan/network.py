"""Collectives by size and by place: latency and bandwidth, counted per node."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .machine import Machine

TREE = 0.46  # bandwidth of a tree all-reduce between nodes, over a ring's


@dataclass(frozen=True)
class Group:
    """Ranks that exchange: how many, and how many of them lie on one node.

    The other GPUs of the node exchange in groups of their own at the same time, so a group gets
    its ranks' share of the node's adapters.
    """

    ranks: int
    per_node: int
    machine: Machine

    def __str__(self) -> str:
        rate = f"{self.bandwidth / 1e9:.3g} GB/s, {self.latency * 1e6:.3g} us per hop"
        return f"{self.ranks} ranks on {self.nodes} nodes, {rate}"

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / self.per_node)

    @property
    def bandwidth(self) -> float:
        """Bus bandwidth in bytes/s: inside a node its links, else the group's share of the node's
        adapters, min(links, r x NIC) [stas00/ml-engineering, network]."""
        machine = self.machine
        links = machine.node_link * machine.node_efficiency
        if self.nodes == 1:
            return links
        share = self.per_node / machine.gpus_per_node
        return min(links, machine.nic_per_node * machine.nic_efficiency * share)

    @property
    def latency(self) -> float:
        """Seconds per hop."""
        return self.machine.node_latency if self.nodes == 1 else self.machine.nic_latency

    def gather(self, size: float, messages: float = 1) -> float:
        """Return the seconds of an all-gather or reduce-scatter of `size` bytes in `messages`
        parts: (n-1)/n S/B + (n-1) α for each [nccl-tests PERFORMANCE.md]."""
        if self.ranks == 1:
            return 0.0
        hops = self.ranks - 1
        return hops / self.ranks * size / self.bandwidth + messages * hops * self.latency

    def reduce(self, size: float, messages: float = 1) -> float:
        """Return the seconds of an all-reduce: the faster of a ring, 2(n-1)/n S/B + 2(n-1) α, and
        between nodes a tree, 2 log2(nodes) α at a lower bandwidth."""
        ring = 2 * self.gather(size, messages)
        if self.nodes == 1:
            return ring
        inside = Group(self.per_node, self.per_node, self.machine)
        hops = 2 * math.ceil(math.log2(self.nodes)) * self.latency
        hops += 2 * (self.per_node - 1) * inside.latency
        busy = 1 + self.machine.congestion * self.nodes
        return min(ring, 2 * size / (TREE * self.bandwidth) * busy + messages * hops)

    def send(self, size: float) -> float:
        """Return the seconds of a message from one rank to the next."""
        return size / self.bandwidth + self.latency


def group(machine: Machine, ranks: int, stride: int) -> Group:
    """Return the group of `ranks` ranks that lie `stride` apart, as the mesh numbers them."""
    per_node = max(1, min(ranks, machine.gpus_per_node // stride))
    return Group(ranks, per_node, machine)
