"""What a plan says of the recipes' models, against what torch does, counted without a GPU."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankup.parallel.build import blocks, recompute, split
from rankup.parallel.choices import Choices
from rankup.parallel.initial import materialize, on_meta
from rankup.parallel.layout import Layout as Mesh
from rankup.plan import counted
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.layout import Layout, Recompute
from rankup.plan.machine import MACHINES
from rankup.plan.network import group
from rankup.plan.shape import Shape
from rankup.recipes.language_model import cross_entropy
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape as GptShape
from rankup.recipes.models.transformer import Transformer
from tests.parallel.pretended import pretended

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


HIDDEN, FFN, HEADS, LENGTH = 256, 640, 8, 48
TOKENS = 2 * LENGTH


@pytest.fixture
def fused_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs torch's RMS norm is made of parts; on GPUs it is one kernel, which reads, writes and
    keeps what that of a layer norm without a bias does."""

    def fused(x: torch.Tensor, shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
        return F.layer_norm(x, shape, weight, None, eps or 1e-6)

    monkeypatch.setattr(F, "rms_norm", fused)


def llama(layers: int, kv_heads: int) -> LlamaShape:
    return LlamaShape(layers, HIDDEN, HEADS, kv_heads, FFN, vocab_size=16)


def model(layers: int, kv_heads: int | None) -> nn.Module:
    """A Llama, or without `kv_heads` a GPT."""
    if kv_heads is None:
        made: nn.Module = Transformer(GptShape(16, LENGTH, layers, HIDDEN, HEADS, 0.0))
    else:
        made = Llama(llama(layers, kv_heads))
    return made.to(torch.bfloat16)


def planned(kv_heads: int | None) -> Shape:
    if kv_heads is None:
        return Shape(1, HIDDEN, HEADS, HEADS, 4 * HIDDEN, 16, LENGTH)
    return shape_of(llama(1, kv_heads), LENGTH)


class Moved(TorchDispatchMode):
    """Bytes that operators read and write, those of products and attention apart."""

    APART = ("mm", "addmm", "bmm", "_unsafe_view", "detach")
    CHOSEN = ("nll_loss_forward", "nll_loss_backward")  # which read one number of a row

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.attends = 0, False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        apart = self.attends or name in self.APART or "scaled_dot_product" in name
        if not (apart or operator.is_view or operator.namespace == "prim"):
            read = () if name in self.CHOSEN else (args, kwargs)
            self.bytes += sum(
                x.numel() * x.element_size()
                for x in tree_leaves((read, found))
                if isinstance(x, torch.Tensor)
            )
        return found


class Attending(TorchFunctionMode):
    """Tells `Moved` what is done inside of attention."""

    def __init__(self, moved: Moved) -> None:
        super().__init__()
        self.moved = moved

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.moved.attends = function is F.scaled_dot_product_attention
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.moved.attends = False


def moved(layers: int, kv_heads: int | None) -> tuple[int, int]:
    """Bytes of a forward and of a backward."""
    made, mode = model(layers, kv_heads), Moved()
    with mode, Attending(mode):
        logits = made(torch.zeros(2, LENGTH, dtype=torch.long))
    forward, mode.bytes = mode.bytes, 0
    with mode:
        logits.backward(torch.ones_like(logits))
    return forward, mode.bytes


@pytest.mark.usefixtures("fused_norm")
def test_element_wise_traffic_of_an_eager_llama_is_as_counted() -> None:
    """By the difference of two depths, in which the model's ends are not."""
    for kv_heads in (HEADS, 2):
        one, two = moved(1, kv_heads), moved(2, kv_heads)
        found = [(b - a) / TOKENS for a, b in zip(one, two, strict=True)]
        expected = counted.elementwise(planned(kv_heads), Layout(1))
        assert found[0] == pytest.approx(expected[0], rel=0.02)
        if kv_heads == HEADS:  # on CPUs attention's backward adds the shared heads' gradients up
            assert found[1] == pytest.approx(expected[1], rel=0.02)
        times = {term.name: term.seconds for term in eager(kv_heads).terms}
        memory = MACHINES["A100-80GB"].hbm * MACHINES["A100-80GB"].hbm_efficiency
        assert times["element-wise"] == pytest.approx(TOKENS * sum(expected) / memory)


def eager(kv_heads: int | None) -> Estimate:
    layout = Layout(1, micro_batch=2, global_batch=2)
    return estimate(planned(kv_heads), layout, MACHINES["A100-80GB"])


def test_a_gpt_moves_no_more_than_a_plan_says() -> None:
    """What published runs of that shape were fitted to is more than their kernels' bytes."""
    one, two = moved(1, None), moved(2, None)
    found = sum(b - a for a, b in zip(one, two, strict=True))
    times = {term.name: term.seconds for term in eager(None).terms}
    memory = MACHINES["A100-80GB"].hbm * MACHINES["A100-80GB"].hbm_efficiency
    assert 0.4 < found / memory / times["element-wise"] < 0.9


class Alive(TorchDispatchMode):
    """Storages that operators made, as long as something holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = operator(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self.bytes())
        return found

    def bytes(self, without: frozenset[int] = frozenset()) -> int:
        self.storages = {key: pair for key, pair in self.storages.items() if not pair[0].expired()}
        return sum(size for key, (_, size) in self.storages.items() if key not in without)


def kept(layers: int, kv_heads: int | None, how: Recompute, compiled: bool = False) -> int:
    """Bytes that a forward leaves for its backward, parameters apart."""
    made = model(layers, kv_heads)
    own = frozenset(p.untyped_storage()._cdata for p in made.parameters())
    recompute(blocks(made), how)
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    if not compiled:
        with Alive() as alive:
            logits = made(tokens)
        gc.collect()
        assert logits.requires_grad
        return alive.bytes(own)
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in own and x.dtype != torch.uint8:  # the state of a CPU's generator
            saved[storage._cdata] = storage.nbytes()
        return x

    for block in blocks(made):
        block.compile(backend="aot_eager_decomp_partition")  # saves what Inductor would
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        logits = made(tokens)
    assert logits.requires_grad
    return sum(saved.values())


KEPT = [(kv, how, False) for kv in (HEADS, 2, None) for how in ("none", "selective", "full")]
KEPT += [(kv, how, True) for kv in (2, None) for how in ("none", "selective", "full")]


@pytest.mark.usefixtures("fused_norm")
@pytest.mark.parametrize(("kv_heads", "how", "compiled"), KEPT)
def test_a_layer_keeps_what_a_plan_says(
    kv_heads: int | None, how: Recompute, compiled: bool
) -> None:
    few, many = (kept(layers, kv_heads, how, compiled) for layers in (2, 3))
    layout = Layout(1, recompute=how, micro_batch=2, global_batch=2)
    expected = counted.activations(planned(kv_heads), layout, compiled)
    # Beside: two statistics of each norm, one number per head of attention.
    assert (many - few) / TOKENS == pytest.approx(expected, abs=4 * HEADS + 16)
    if how == "none" and not compiled:
        memory = dict(eager(kv_heads).memory)["activations"]
        assert memory == pytest.approx(many - few, rel=0.01)


def shared(layers: int, how: Recompute, tp: int) -> int:
    """The same of a rank of a tensor-parallel group."""
    with pretended(Mesh(tp=tp, dp_shard=2), 0) as ranks:
        made = on_meta(lambda: Llama(llama(layers, 4)), 0)
        built, _ = split(made, ranks, Choices(half="bfloat16", recompute=how))
        materialize(built.model, ranks.world.device, ranks.world.device)
        saved: dict[int, tuple[int, torch.Tensor]] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            keep(x)
            return x

        def keep(x: torch.Tensor) -> None:
            local = getattr(x, "_local_tensor", x)
            storage = local.untyped_storage()
            # Weights, whole for the forward, have as many rows as they have features.
            if local.dim() and local.shape[0] in (2, TOKENS) and local.dtype == torch.bfloat16:
                saved[storage._cdata] = (storage.nbytes(), x)

        tokens = torch.zeros(2, LENGTH, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), built.computing():
            logits = built.model(tokens)
        if how == "selective":  # torch holds what is kept in a table of its own, past the hooks
            gc.collect()
            for x in list(of_the_collector()):
                keep(x)
        with built.computing():  # which frees them
            built.plain(cross_entropy(logits, tokens)).backward()
        return sum(size for size, _ in saved.values())


def of_the_collector() -> Iterator[torch.Tensor]:
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.distributed.tensor.DTensor) and not thing.is_meta:
            yield thing


@pytest.mark.usefixtures("fused_norm")
@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_a_layer_of_a_tensor_parallel_rank_keeps_what_a_plan_says(how: Recompute) -> None:
    for tp in (2, 4):
        few, many = (shared(layers, how, tp) for layers in (2, 3))
        layout = Layout(tp, tp=tp, recompute=how, sequence_parallel=True)
        expected = counted.activations(planned(4), layout, compiled=False)
        assert (many - few) / TOKENS == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("tokens", [500, 4096])
def test_the_loss_moves_and_keeps_what_a_plan_says(precision: str, tokens: int) -> None:
    """All at once, and by rows where there are many: without memory, on fake tensors."""
    vocabulary, width = 32000, 16
    layout = Layout(1, precision=precision)  # type: ignore[arg-type]
    logits = tokens * vocabulary
    expected = counted.loss(logits, layout, compiled=False)
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    with FakeTensorMode():
        x = torch.empty(1, tokens, width, dtype=kind, requires_grad=True)
        head = torch.empty(vocabulary, width, dtype=kind, requires_grad=True)
        targets = torch.empty(1, tokens, dtype=torch.long)
        forward, backward, alive = Moved(), Moved(), Alive()
        with alive:
            with forward:
                loss = cross_entropy(F.linear(x, head), targets)
            with backward:
                loss.backward()
    assert forward.bytes / logits == pytest.approx(expected.forward, rel=0.02)
    assert backward.bytes / logits == pytest.approx(expected.backward, rel=0.02)
    peak = expected.peak + expected.chunk / logits
    assert alive.most / logits == pytest.approx(peak, rel=0.1)
    lean = counted.loss(logits, layout, compiled=True)
    assert lean.forward + lean.backward <= (expected.forward + expected.backward) / 2
    assert lean.peak <= expected.peak
