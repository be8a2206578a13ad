"""The peak of a Llama 8 B's step on 64 ranks that are not there, beside what `plan` says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

from rankup.parallel.build import split
from rankup.parallel.choices import Choices, Recompute
from rankup.parallel.layout import Layout
from rankup.plan.framework import FRAMEWORKS
from rankup.plan.layout import Layout as Planned
from rankup.plan.memory import memory
from rankup.plan.shape import Shape
from rankup.recipes.language_model import cross_entropy
from rankup.recipes.llama import SIZES
from rankup.recipes.models.llama import Llama
from tests.parallel.pretended import pretended

RANKS, LENGTH, VOCABULARY = 64, 4096, 128_256
# Gathered layers in full precision on their way to the optimizer are not in plan's figure.
WITHIN = 0.15
GIB = 2**30


def _one_kernel(norm: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    """A norm that keeps its input and a number per row, as `nn.RMSNorm` does on a GPU alone.

    On a CPU that is made of four operations, each of which keeps float32 values.
    """
    return nn.functional.layer_norm(x, (x.shape[-1],), norm.weight)


def _measured(how: Recompute, layers: int) -> tuple[float, float]:
    """Bytes at the peak of a micro-batch of one sequence: in all, and of activations alone."""
    shape = replace(SIZES["llama-8b"], vocab_size=VOCABULARY, longest=LENGTH, layers=layers)
    with pretended(Layout(dp_shard=RANKS), 0) as mesh:
        with torch.device("meta"):
            model = Llama(shape)
        built, _ = split(model, mesh, Choices(half="bfloat16", recompute=how))
        with FakeTensorMode(allow_non_fake_inputs=True):
            built.model.to_empty(device="cpu")
            tokens = torch.zeros(1, LENGTH, dtype=torch.long)
            tracker = FSDPMemTracker(built.model)
            tracker.track_inputs((tokens,))
            with tracker:
                for _ in range(2):  # the second one has gradients from the beginning
                    cross_entropy(built.model(tokens), tokens).backward()
                    tracker.reset_mod_stats()
            (parts,) = tracker.get_tracker_snapshot("peak").values()
    named = {str(kind).rpartition(".")[2]: float(size) for kind, size in parts.items()}
    return named["Total"], named["ACT"] + named["TEMP"]


def _planned(how: Recompute, layers: int) -> dict[str, float]:
    llama = SIZES["llama-8b"]
    shape = Shape(
        layers, llama.dim, llama.heads, llama.kv_heads, llama.ffn, VOCABULARY, LENGTH,
        gated=True, tied=False, last=llama.dim,
    )  # fmt: skip
    layout = Planned(
        RANKS, "fsdp", dp_shard=RANKS, global_batch=RANKS, recompute=how, zero=3, precision="bf16"
    )
    parts = dict(memory(shape, layout, FRAMEWORKS["rankup"]))
    # The micro-batch is measured: no optimizer, no allocator and no CUDA is there.
    for name in ("optimizer", "fragmentation", "CUDA context and libraries"):
        del parts[name]
    return parts


@pytest.mark.parametrize(
    ("how", "layers"),
    [
        ("selective", 4),
        ("full", 4),
        ("none", 4),
        pytest.param("selective", 32, marks=pytest.mark.slow),
    ],
)
def test_peak_of_an_8b_is_what_plan_says(
    how: Recompute, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.RMSNorm, "forward", _one_kernel)
    total, activations = _measured(how, layers)
    planned = _planned(how, layers)
    assert total == pytest.approx(sum(planned.values()), rel=WITHIN), f"{total / GIB:.2f} GiB"
    # Logits in float32, and their gradient, would be 4 GB more.
    assert activations <= planned["activations"] + planned["logits"]
