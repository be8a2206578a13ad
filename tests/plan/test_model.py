"""The model of `rankup plan`: published closed forms to the digit, and that more costs more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankup.base.errors import UserError
from rankup.parallel.layout import Layout as Mesh
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.framework import FSDP
from rankup.plan.layout import Layout
from rankup.plan.machine import GB, GIB, MACHINES, machine, of_site
from rankup.plan.machines import Site
from rankup.plan.memory import activations, states
from rankup.plan.network import group
from rankup.plan.pipeline import bubble, kept, stage_layers
from rankup.plan.search import Search, where_it_stops_paying
from rankup.plan.shape import Shape
from rankup.site import profile


def gpt(layers: int, hidden: int, heads: int) -> Shape:
    return Shape(layers, hidden, heads, heads, 4 * hidden, 51200, 2048, positions=2048)


LLAMA_7B = Shape(32, 4096, 32, 32, 11008, 32000, 4096, gated=True, tied=False)
# Korthikanti 2022, table 3: shape, micro-batch, pipeline, interleave, batch.
MODELS = {
    "22B": (gpt(48, 6144, 64), 4, 1, 1, 4),
    "175B": (gpt(96, 12288, 96), 1, 8, 3, 64),
    "530B": (gpt(105, 20480, 128), 1, 35, 3, 280),
    "1T": (gpt(128, 25600, 160), 1, 64, 1, 512),
}


def korthikanti(name: str, recompute: str, sequence_parallel: bool) -> tuple[Shape, Layout]:
    shape, micro, pp, interleave, batch = MODELS[name]
    layout = Layout(
        8 * pp,
        tp=8,
        pp=pp,
        interleave=interleave,
        micro_batch=micro,
        global_batch=batch,
        recompute=recompute,  # type: ignore[arg-type]
        sequence_parallel=sequence_parallel,
    )
    return shape, layout


@pytest.mark.parametrize(
    ("name", "recompute", "sequence_parallel", "gib"),
    [
        ("22B", "none", False, 59.25),
        ("22B", "selective", True, 9.5625),
        ("175B", "none", False, 66.84375),
        ("175B", "selective", True, 12.3515625),
        ("530B", "none", False, 114.0234375),
        ("530B", "selective", True, 23.076171875),
        ("1T", "none", False, 131.25),
        ("1T", "selective", True, 26.5625),
    ],
)
def test_activations_are_those_of_korthikanti_figure_1(
    name: str, recompute: str, sequence_parallel: bool, gib: float
) -> None:
    shape, layout = korthikanti(name, recompute, sequence_parallel)
    held = stage_layers(layout, shape.layers) * kept(layout, 0)
    assert held * activations(shape, layout) / GIB == pytest.approx(gib, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "percent"),
    [("22B", (66.84, 49.42, 16.18, 7.64)), ("175B", (62.04, 56.53, 18.49, 8.71))],
)
def test_shares_are_those_of_korthikanti_figure_7(name: str, percent: tuple[float, ...]) -> None:
    whole = activations(*korthikanti(name, "none", False))
    cases = [("none", True), ("selective", False), ("selective", True), ("full", False)]
    found = [100 * activations(*korthikanti(name, *case)) / whole for case in cases]
    assert found == pytest.approx(percent, abs=0.2)  # read off a figure


def test_parameters_and_flops_are_those_of_narayanan() -> None:
    layers, h, vocab, s = 96, 12288, 51200, 2048
    shape = gpt(layers, h, 96)
    expected = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * layers * h))
    assert shape.parameters() == pytest.approx(expected, rel=1e-12)
    # Equation 3 counts four forwards of the layers and three of the head.
    again = layers * (2 * (shape.attention_weights + shape.ffn_weights) + shape.attention_flops())
    equation = 96 * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert shape.train_flops() + again == pytest.approx(equation, rel=1e-12)
    assert shape.train_flops(causal=True) < shape.train_flops()
    assert LLAMA_7B.parameters() == pytest.approx(6.74e9, rel=1e-3)


@pytest.mark.parametrize(
    ("zero", "shards", "bytes_per_parameter"),
    [(0, 1, 16.0), (1, 8, 8 + 8 / 8), (2, 8, 4 + 12 / 8), (3, 8, 16 / 8)],
)
def test_states_are_those_of_zero(zero: int, shards: int, bytes_per_parameter: float) -> None:
    layout = Layout(shards, dp_shard=shards, zero=zero)
    assert sum(states(layout, FSDP, 1.0)) == pytest.approx(bytes_per_parameter)


@pytest.mark.parametrize(
    ("schedule", "interleave", "expected"),
    [
        ("gpipe", 1, 3.0),
        ("1f1b", 1, 3.0),
        ("interleaved", 2, 1.5),
    ],
)
def test_a_schedule_has_its_bubble(schedule: str, interleave: int, expected: float) -> None:
    layout = Layout(
        4, pp=4, schedule=schedule, interleave=interleave, micro_batch=1, global_batch=8
    )
    assert bubble(layout) == pytest.approx(expected)
    assert kept(layout, 0) <= 8


def test_a_gpu_of_which_no_run_was_measured_has_a_wide_band_and_says_so() -> None:
    for name, one in MACHINES.items():
        measured = name.startswith(("A100", "H100"))
        assert ("not measured" in one.source) != measured
        layout = Layout(8, dp_shard=8, zero=3, global_batch=64)
        assert estimate(LLAMA_7B, layout, one).band == (0.13 if measured else 0.3)


@pytest.mark.parametrize("kind", ["V100", "A100", "H100"])
def test_a_gpu_of_more_memory_computes_as_the_smaller_one(kind: str) -> None:
    same = {(one.peak_flops, one.fp32_flops) for one in MACHINES.values() if kind in one.gpu}
    assert len(same) == 1


def test_bandwidth_between_nodes_is_a_nodes() -> None:
    """A ring enters a node once: eight ranks per node share its adapters, one has an eighth."""
    node = replace(MACHINES["H100-80GB"], nic_per_node=400 * GB, nic_efficiency=1.0)
    inside, all_ranks, one_each = group(node, 8, 1), group(node, 32, 1), group(node, 4, 8)
    assert (inside.nodes, all_ranks.nodes, one_each.nodes) == (1, 4, 4)
    assert inside.bandwidth == node.node_link * node.node_efficiency
    assert all_ranks.bandwidth == min(inside.bandwidth, 400 * GB)
    assert one_each.bandwidth == 50 * GB
    assert all_ranks.reduce(GB) > inside.reduce(GB)
    assert group(node, 1, 1).gather(GB) == 0
    # A tree's latency grows with the logarithm of nodes, a ring's with ranks.
    assert group(node, 4096, 1).reduce(1e3) < 2 * group(node, 4096, 1).gather(1e3)


def fsdp(gpus: int = 64, **changes: object) -> Layout:
    usual = Layout(
        gpus, "fsdp", dp_shard=gpus, micro_batch=2, global_batch=512, zero=3, recompute="none"
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def at(layout: Layout, gpu: str = "A100-80GB", **changes: object) -> Estimate:
    return estimate(LLAMA_7B, layout, replace(MACHINES[gpu], **changes))  # type: ignore[arg-type]


def test_more_work_takes_longer_and_better_machines_are_faster() -> None:
    base = at(fsdp())
    assert sum(term.seconds for term in base.terms) == pytest.approx(base.seconds)
    assert 0.3 < base.mfu < 0.75
    assert all(term.formula and term.source for term in base.terms)
    assert at(fsdp(128)).seconds < base.seconds < at(fsdp(32)).seconds
    assert at(fsdp(), nic_per_node=10 * GB).seconds > base.seconds
    assert at(fsdp(), nic_per_node=800 * GB).seconds <= base.seconds
    assert at(fsdp(), "H100-80GB").seconds < base.seconds
    full = at(fsdp(recompute="full"))
    assert full.seconds > base.seconds
    assert full.memory_total < base.memory_total
    assert at(fsdp(micro_batch=4)).memory_total > base.memory_total
    assert at(fsdp(global_batch=1024)).seconds > 1.9 * base.seconds


def test_what_fsdp_keeps_is_gathered_and_added_up_once_a_step() -> None:
    """ZeRO-2 and 1 in memory and time, of eight micro-batches; of one there is nothing to spare."""
    slow = {"nic_per_node": 2 * GB}
    by_zero = [at(fsdp(micro_batch=1, zero=zero), **slow) for zero in (3, 2, 1)]
    assert by_zero[0].layout.micro_batches == 8
    times = [found.seconds for found in by_zero]
    needs = [found.memory_total for found in by_zero]
    assert times == sorted(times, reverse=True)
    assert needs == sorted(needs)
    weights = [dict(found.memory)["weights"] for found in by_zero]
    assert len(set(weights)) == 1, "the float32 weights lie in shards under each"
    parameters = LLAMA_7B.parameters()
    assert dict(by_zero[1].memory)["gathered layers"] == pytest.approx(2 * parameters)
    assert dict(by_zero[2].memory)["gradients"] == pytest.approx(4 * parameters)
    exchanged = [
        sum(t.seconds for t in found.terms if t.name in ("sharded weights", "gradients"))
        for found in by_zero
    ]
    # On such a network hardly anything is hidden: 8 (2 + 2 + 4) P, 2 + 8 · 4, 2 + 4.
    assert exchanged[0] / exchanged[1] == pytest.approx(64 / 34, rel=0.1)
    assert exchanged[1] / exchanged[2] == pytest.approx(34 / 6, rel=0.15)


def test_every_second_layer_recomputes_half() -> None:
    none, half, full = (at(fsdp(recompute=how)) for how in ("none", "selective:2", "full"))
    kept = [dict(found.memory)["activations"] for found in (none, half, full)]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2, rel=1 / 32)  # and half a layer
    again = [
        sum(t.seconds for t in found.terms if t.name == "recomputation") for found in (half, full)
    ]
    assert again[0] == pytest.approx(again[1] / 2)


def test_of_an_odd_number_of_layers_the_larger_half_keeps_all() -> None:
    six = replace(LLAMA_7B, layers=6, vocab=64)  # so that the first stage needs most
    layouts = (
        Layout(2, pp=2, global_batch=8, recompute=how) for how in ("none", "selective:2", "full")
    )
    found = (estimate(six, layout, MACHINES["A100-80GB"]) for layout in layouts)
    none, half, full = (dict(one.memory)["activations"] for one in found)
    in_flight, layers = 2, 3  # of the first stage, which keeps most
    whole = none / in_flight / layers
    inputs = (full - whole) / (in_flight * layers - 1)  # beside a layer that is computed again
    assert half == pytest.approx(in_flight * (2 * whole + inputs) + whole - inputs)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_copies_of_shared_sequences_shard_over_their_own_ranks(zero: int) -> None:
    layout = Layout(16, dp_replicate=8, cp=2, zero=zero, global_batch=64)
    assert layout.shards == Mesh(dp_replicate=8, cp=2).shard_size == 2
    found = dict(estimate(LLAMA_7B, layout, MACHINES["H100-80GB"]).memory)
    assert found["weights"] == 4 * LLAMA_7B.parameters() / 2


def test_the_search_adds_gradients_up_once_only_where_that_spares_something() -> None:
    machine = MACHINES["H100-80GB"]
    zeros = {
        once: {
            (layout.zero, layout.micro_batches > 1)
            for layout in Search(LLAMA_7B, 64, once=once).candidates(machine, 16)
            if layout.pp == 1 and layout.dp_shard > 1
        }
        for once in (True, False)
    }
    assert zeros[True] == {(3, True), (3, False), (2, True), (2, False), (1, True)}
    assert zeros[False] == {(3, True), (3, False), (2, True), (2, False)}


def test_hsdp_helps_where_adapters_are_slow() -> None:
    slow = {"nic_per_node": 10 * GB}
    hybrid = fsdp(dp_replicate=8, dp_shard=8, strategy="hsdp")
    assert at(hybrid, **slow).seconds < at(fsdp(), **slow).seconds
    assert at(hybrid).memory_total > at(fsdp()).memory_total


def test_diloco_exchanges_once_in_its_inner_steps() -> None:
    copies = Layout(64, "ddp", dp_replicate=64, micro_batch=1, global_batch=64)
    slow = {"nic_per_node": 1 * GB}
    rare = replace(copies, strategy="diloco", inner_steps=100)
    assert at(rare, **slow).seconds < 0.2 * at(copies, **slow).seconds


def test_what_limits_is_named_with_what_would_help() -> None:
    slow = at(fsdp(micro_batch=1), nic_per_node=2 * GB)
    assert slow.limit == "exchange of sharded weights"
    assert "hsdp" in slow.advice
    staged = Layout(32, "pp", pp=16, dp_replicate=2, micro_batch=4, global_batch=32)
    assert at(staged).limit == "bubble"
    assert "micro-batches" in at(staged).advice
    across = at(Layout(32, "tp", tp=32, micro_batch=1, global_batch=32))
    assert across.limit == "tensor-parallel exchange"
    assert "--tp 8" in across.advice
    assert across.band > at(fsdp()).band


def test_memory_is_of_the_most_loaded_stage() -> None:
    """The first stage of 1F1B keeps as many micro-batches as there are stages, the last logits."""
    staged = Layout(8, "pp", pp=8, micro_batch=1, global_batch=64)
    assert "logits" not in dict(at(staged).memory)
    few_layers = replace(LLAMA_7B, layers=8, vocab=256_000)
    assert "logits" in dict(estimate(few_layers, staged, MACHINES["A100-80GB"]).memory)
    gpipe = at(replace(staged, schedule="gpipe"))
    assert gpipe.memory_total > 2 * at(staged).memory_total


def test_the_search_proposes_only_what_fits_and_comes_out() -> None:
    booster = of_site(profile.load("juwels-booster"))
    assert booster is not None
    assert (booster.gpu, booster.gpus_per_node, booster.unit) == ("A100-40GB", 4, "core-h")
    assert booster.core_hours_per_gpu_hour == 12
    search = Search(LLAMA_7B, 48)
    for layout in search.candidates(booster, 16):
        assert layout.dp_replicate * layout.dp_shard * layout.tp * layout.pp == 16
        assert 48 % (layout.data * layout.micro_batch) == 0
        assert layout.tp <= 4
    found = search.layouts(booster, 16)
    assert found.best is not None
    assert found.best.fits
    assert not found.best.risky
    assert all(one.fits for one in found.fitting)
    assert found.closest is not None
    assert not found.closest.fits
    alone = search.layouts(booster, 1)
    assert alone.best is None
    assert alone.closest is not None
    assert alone.closest.head_room < 0
    least = search.fewest_gpus(booster)
    assert least is not None
    assert 1 < least <= 16


def test_adding_gpus_stops_paying() -> None:
    jupiter = of_site(profile.load("jupiter"))
    assert jupiter is not None
    found = [Search(LLAMA_7B, 1024).layouts(jupiter, 4 * 4**k) for k in range(5)]
    token_cost = Site("JUPITER", jupiter).token_cost
    stop = where_it_stops_paying(found, token_cost)
    assert stop is not None
    assert stop.gpus > 16
    assert where_it_stops_paying(found[:1], token_cost) is None


def test_an_unknown_gpu_names_the_nearest() -> None:
    assert machine("a100-40gb", 4, 100 * GB).nic_per_node == 100 * GB
    with pytest.raises(UserError, match="A100-40GB"):
        machine("A100-40G")
