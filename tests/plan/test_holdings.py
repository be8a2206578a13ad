"""Who holds what, as `rankup plan --explain` shows it: torch cuts the recipes' models so."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import DTensor

from rankup import recipes
from rankup.base.amounts import number
from rankup.parallel.build import split
from rankup.parallel.choices import Choices
from rankup.parallel.initial import on_meta
from rankup.parallel.layout import Layout as Mesh
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.holdings import lines, weights
from rankup.plan.layout import Layout
from rankup.plan.machine import MACHINES
from rankup.plan.shape import Shape
from rankup.plan.target import Sizes, find
from rankup.recipes.language_model import model_of
from tests.parallel.pretended import pretended

# Sizes that come out even over no number of ranks.
GPT = ["--vocab", "byte", "--dim", "20", "--heads", "4", "--layers", "2", "--seq-len", "12"]
LLAMA = ["--model", "llama-160m", *GPT, "--dim", "24", "--kv-heads", "2", "--ffn", "42"]


@pytest.mark.parametrize("words", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(
    "mesh",
    [Mesh(dp_shard=3, tp=2), Mesh(dp_replicate=2, dp_shard=3, cp=2), Mesh(dp_shard=7)],
    ids=str,
)
def test_each_rank_of_torch_has_what_is_said(words: list[str], mesh: Mesh) -> None:
    options, shape = recipes.find("language-model").parse(words), find_shape(words)
    layout = Layout(mesh.world_size, dp_shard=mesh.dp_shard, cp=mesh.cp, tp=mesh.tp, zero=3)
    for rank in range(mesh.world_size):
        tp, shard = mesh.coordinates(rank)[-1], mesh.shard_rank(rank)
        said = {weight.name: weight.part(layout, tp, shard) for weight in weights(shape)}
        with pretended(mesh, rank) as pretence:
            model = split(on_meta(lambda: model_of(options, 256), 0), pretence, Choices())[0].model
            found = {
                name.removeprefix("blocks.1.").removesuffix(".weight"): tuple(
                    (p.to_local() if isinstance(p, DTensor) else p).shape
                )
                for name, p in model.named_parameters()
                if not name.startswith("blocks.0.") and name.endswith(".weight")
            }
        del found["norm"]  # of the end, as large as the others
        assert found == said, rank


def find_shape(words: list[str]) -> Shape:
    return find("language-model", words, Sizes()).shape


def _of(layout: Layout, shape: Shape | None = None) -> Estimate:
    shape = shape or Shape(30, 4096, 32, 8, 14336, 128256, 4096, gated=True, tied=False)
    return estimate(shape, layout, MACHINES["H100-80GB"])


def test_ranks_that_share_something_are_named_in_the_order_of_the_mesh() -> None:
    layout = Layout(32, "3d", dp_replicate=2, dp_shard=2, tp=2, pp=4, zero=3, global_batch=32)
    mesh, said = Mesh(4, 2, 2, 1, 2), list(lines(_of(layout)))
    assert said[0] == "who holds what: 32 ranks on 4 nodes"
    for axis, name in enumerate(("pp", "dp", "shard", "cp", "tp")):
        zero = (0,) * axis
        ranks = [
            rank
            for rank in range(32)
            if mesh.coordinates(rank)[:axis] == zero
            and mesh.coordinates(rank)[axis + 1 :] == (0,) * (4 - axis)
        ]
        line = [line for line in said if line.startswith(f"  {name} ")]
        words = f"  {name} {len(ranks)}: ranks {', '.join(map(str, ranks))} "
        assert [one.startswith(words) for one in line] == ([True] if len(ranks) > 1 else [])


def test_stages_keep_their_layers_and_the_ends() -> None:
    layout = Layout(8, "pp", pp=8, global_batch=64)
    said = list(lines(_of(layout)))
    rows = said[said.index("") + 1 :][1:4]
    assert [row.split()[0] for row in rows] == ["0", "1-6", "7"]
    assert [row.split("  ")[-1] for row in rows] == [
        "4 of 30 layers, embedding",
        "4 of 30 layers",
        "4 of 30 layers, head",
    ]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_a_rank_keeps_is_what_the_memory_counts(zero: int) -> None:
    layout = Layout(8, "fsdp", dp_shard=8, zero=zero, global_batch=64)
    found = _of(layout)
    row = next(line for line in lines(found) if line.endswith("30 layers, embedding, head"))
    gib = [f"{dict(found.memory)[part] / 2**30:.3g} GiB" for part in ("weights", "optimizer")]
    assert gib[0] in row
    assert gib[1] in row
    assert row.split()[1] == number(found.shape.parameters() / 8)
