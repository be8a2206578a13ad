"""What a plan says of the recipes' models, against what torch does, counted without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankup.parallel.build import split
from rankup.parallel.choices import Choices
from rankup.parallel.initial import materialize, on_meta
from rankup.parallel.layout import Layout as Mesh
from rankup.parallel.on_paper import pretended
from rankup.plan.estimate import estimate
from rankup.plan.layout import Layout
from rankup.plan.machine import MACHINES
from rankup.plan.network import group
from rankup.plan.shape import Shape
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.running import cross_entropy

SMALL = LlamaShape(layers=4, dim=64, heads=4, kv_heads=2, ffn=160, vocab_size=96)


def shape_of(llama: LlamaShape, seq: int) -> Shape:
    return Shape(
        llama.layers,
        llama.dim,
        llama.heads,
        llama.kv_heads,
        llama.ffn,
        llama.vocab_size,
        seq,
        gated=True,
        tied=llama.tied,
        last=llama.dim,
    )


KINDS = {"_allgather_base_": "gather", "_reduce_scatter_base_": "scatter", "allreduce_": "sum"}


class Sent(TorchDispatchMode):
    """Bytes that collectives are given: of the whole for gathers and scatters, of a rank's part for
    all-reduces."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = KINDS.get(operator.overloadpacket.__name__)
        if operator.namespace == "c10d" and kind:
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.bytes[kind] += max(x.numel() * x.element_size() for x in tensors)
        return operator(*args, **(kwargs or {}))


def step(mesh: Mesh, micro_batches: int) -> Counter[str]:
    """The bytes of a step of a small Llama in bf16, on the ranks of a mesh that are not there."""
    tokens = torch.zeros(1, 16, dtype=torch.long)
    with pretended(mesh, 0) as ranks:
        model = on_meta(lambda: Llama(SMALL), 0)
        built, _ = split(model, ranks, Choices(half="bfloat16"))
        materialize(built.model, ranks.world.device, ranks.world.device)
        with Sent() as sent:
            for number in range(micro_batches):
                with built.exchange_at(number == micro_batches - 1), built.computing():
                    cross_entropy(built.model(tokens), tokens).backward()
    return sent.bytes


@pytest.mark.parametrize("copies", [1, 4])
def test_an_exchange_between_copies_is_once_in_a_step(copies: int) -> None:
    """Weights and gradients go round in each micro-batch, the sums of copies behind the last."""
    machine = replace(
        MACHINES["A100-80GB"], contention=1.0, node_latency=0.0, nic_latency=0.0, gpus_per_node=4
    )
    counted, terms = {}, {}
    for micro_batches in (1, 3):
        counted[micro_batches] = step(Mesh(dp_replicate=copies, dp_shard=4), micro_batches)
        layout = Layout(
            4 * copies,
            "hsdp" if copies > 1 else "fsdp",
            dp_replicate=copies,
            dp_shard=4,
            global_batch=4 * copies * micro_batches,
            zero=3,
        )
        found = estimate(shape_of(SMALL, 16), layout, machine)
        terms[micro_batches] = {term.name: term.seconds for term in found.terms}
    for kind in ("gather", "scatter"):
        assert counted[3][kind] == 3 * counted[1][kind] > 0
    assert terms[3]["sharded weights"] == pytest.approx(3 * terms[1]["sharded weights"])
    reduced = group(machine, copies, 4).reduce(counted[1]["sum"])
    for micro_batches in (1, 3):
        assert counted[micro_batches]["sum"] == counted[1]["sum"]
        assert terms[micro_batches].get("gradients", 0.0) == pytest.approx(reduced)
