"""The machine that the measurements of `recipes/measure.py` are of.

Each constant is the one with which the model's own formula gives the times that were measured, so
that what the formulas leave out is in the constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from . import compute
from .estimate import estimate
from .framework import FRAMEWORKS
from .layout import Layout, Precision
from .machine import GB, GIB, MACHINES, Machine
from .shape import Shape

Rows = Sequence[Mapping[str, Any]]
_FRAMEWORK = FRAMEWORKS["rankup"]
_COSTS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # times of a ring


def machines_of(measured: Mapping[str, Any]) -> dict[int, Machine]:
    """Return the machine by ranks per node at work.

    Raises:
        KeyError, ValueError, TypeError: these are no measurements.
    """
    base = _base(measured)
    precision: Precision = measured["precision"]
    counts = sorted({int(row["ranks"]) for row in measured["rows"]})
    found = {}
    for ranks in counts:
        rows = [row for row in measured["rows"] if row["ranks"] == ranks]
        made = _products(base, _of(rows, "product"), precision)
        made = _blocks(made, rows, precision)
        optimizer = _of(rows, "optimizer")[0]
        one = replace(made, optimizer_rate=1.0)
        rate = compute.optimizer(optimizer["parameters"], one) / optimizer["seconds"]
        found[ranks] = _exchanges(replace(made, optimizer_rate=rate), rows, ranks)
    most = found[counts[-1]]
    sharded = _wrapping(most, _of(measured["rows"], "fsdp"), precision)
    by_size: dict[int, list[Mapping[str, Any]]] = {}
    for row in _of(measured["rows"], "tp"):
        by_size.setdefault(int(row["tp"]), []).append(row)
    cut = {size: _wrapping(most, rows, precision) for size, rows in by_size.items()}
    for ranks, one in found.items():
        near = min(cut, key=lambda size: abs(size - ranks), default=None)
        tensor = 0.0 if near is None else cut[near]
        found[ranks] = replace(one, sharded_layer=sharded, tensor_layer=tensor)
    return found


def _of(rows: Rows, *kinds: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] in kinds]


def _base(measured: Mapping[str, Any]) -> Machine:
    """Constants that the measurements do not say: of the GPU's name, where that is known."""
    device, memory = str(measured["device"]), float(measured["memory"]) / GIB
    known = [one for one in MACHINES.values() if one.gpu.partition("-")[0] in device]
    base = min(known, key=lambda one: abs(one.memory_gib - memory), default=None)
    if base is None:
        base = Machine(device, memory, 0.0, 0.0, matmul_efficiency=1.0, hbm_efficiency=1.0)
    return replace(
        base,
        memory_gib=memory,
        power=1.0,
        # Ranks on a CPU compute and exchange with the same cores.
        contention=1.0 if device == "CPU" else base.contention,
        gpus_per_node=int(measured["per_node"]),
        source=f"measured on {device} by rankup plan --calibrate",
        calibrated=True,
    )


def _products(machine: Machine, rows: Rows, precision: Precision) -> Machine:
    """seconds = (FLOPs + half) / rate: least squares of relative errors."""
    flops = np.array([2.0 * row["m"] * row["n"] * row["k"] for row in rows])
    seconds = np.array([row["seconds"] for row in rows], dtype=float)
    per_flop, fixed = _line(flops / seconds, 1 / seconds)
    peak = machine.computing(precision).peak_flops or float(max(flops / seconds))
    if not machine.peak_flops:
        machine = replace(machine, peak_flops=peak, fp32_flops=peak)
    half = fixed / per_flop * machine.peak_flops / peak
    return replace(machine, matmul_efficiency=1 / per_flop / peak, matmul_half=half)


def _blocks(machine: Machine, rows: Rows, precision: Precision) -> Machine:
    """Launches from the smallest block; attention; and from the others what is left for memory."""
    blocks = _of(rows, "block")
    smallest = min(blocks, key=lambda row: row["hidden"] * row["seq"] * row["batch"])
    large = [row for row in rows if not all(row.get(n) == smallest[n] for n in ("hidden", "seq"))]

    def work(row: Mapping[str, Any], machine: Machine) -> compute.Work:
        hidden, heads = row["hidden"], row["heads"]
        shape = Shape(1, hidden, heads, heads, 4 * hidden, 1, row["seq"])
        layout = Layout(1, micro_batch=row["batch"], precision=precision)
        return compute.layer(shape, layout, machine.computing(precision), _FRAMEWORK)

    fast = replace(machine, hbm=1e18, hbm_efficiency=1.0, launch=0.0, attention_efficiency=1.0)
    attention = median(
        work(row, fast).attention / row["seconds"] for row in _of(large, "attention")
    )
    fast = replace(fast, attention_efficiency=attention)
    rates = []
    for row in _of(large, "block"):
        bare = work(row, fast)
        slow = work(row, replace(fast, hbm=1.0)).elementwise
        # Element-wise kernels are done once in a forward, twice in a backward.
        left = row["seconds"] - bare.forward - bare.backward
        rates.append(3 * slow / max(left, 0.02 * row["seconds"]))
    rate = geometric_mean(rates)
    hbm = machine.hbm or rate
    tiny = next(row for row in _of(rows, "forward") if row["hidden"] == smallest["hidden"])
    launches = work(tiny, replace(fast, launch=1.0)).floor
    return replace(
        machine,
        attention_efficiency=attention,
        hbm=hbm,
        hbm_efficiency=rate / hbm,
        launch=tiny["seconds"] / launches,
    )


def _wrapping(machine: Machine, rows: Rows, precision: Precision) -> float:
    """Seconds that a layer of a split model takes beyond the prediction: the difference of two
    depths, in which all that a model does once is not."""
    if len(rows) != 2:
        return 0.0

    def layers(row: Mapping[str, Any]) -> float:
        tp = row["tp"]
        data = row["group"] // tp
        hidden, heads = row["hidden"], row["heads"]
        shape = Shape(row["layers"], hidden, heads, heads, 4 * hidden, row["vocab"], row["seq"])
        layout = Layout(
            row["group"],
            dp_replicate=data if tp > 1 else 1,
            dp_shard=1 if tp > 1 else data,
            tp=tp,
            micro_batch=row["batch"],
            global_batch=row["batch"] * data,
            zero=0 if tp > 1 else 3,
            sequence_parallel=tp > 1,
            precision=precision,
        )
        parts = estimate(shape, layout, machine).terms
        return row["seconds"] - sum(one.seconds for one in parts if one.name != "optimizer")

    few, many = sorted(rows, key=lambda row: row["layers"])
    return max(0.0, (layers(many) - layers(few)) / (many["layers"] - few["layers"]))


def _exchanges(machine: Machine, rows: Rows, ranks: int) -> Machine:
    """Links from groups within a node, adapters from groups over several."""
    within = [row for row in rows if row.get("group") == ranks]
    if within:
        bandwidth, latency = _ring(within)
        machine = replace(machine, node_link=bandwidth, node_efficiency=1.0, node_latency=latency)
    between = [row for row in rows if row.get("group", 0) > ranks]
    if between:
        bandwidth, latency = _ring(between)
        nic = bandwidth * machine.gpus_per_node / ranks
        machine = replace(machine, nic_per_node=nic, nic_efficiency=1.0, nic_latency=latency)
    elif not machine.nic_per_node:
        machine = replace(machine, nic_per_node=GB)
    return machine


def _ring(rows: Rows) -> tuple[float, float]:
    """Bus bandwidth and latency of a hop: seconds = c ((n-1)/n S/B + (n-1) α)."""
    kept = _of(rows, *_COSTS)
    seconds = np.array([row["seconds"] for row in kept], dtype=float)
    costs = np.array([_COSTS[row["kind"]] for row in kept], dtype=float)
    size = np.array([row["bytes"] for row in kept], dtype=float)
    hops = np.array([row["group"] - 1 for row in kept], dtype=float)
    per_byte, latency = _line(costs * hops / (hops + 1) * size / seconds, costs * hops / seconds)
    return 1 / per_byte, latency


def _line(slopes: Iterable[float], ones: Iterable[float]) -> tuple[float, float]:
    """The positive a and b with which a x slopes + b x ones is nearest to 1."""
    table = np.column_stack([np.asarray(slopes, dtype=float), np.asarray(ones, dtype=float)])
    (a, b), *_ = np.linalg.lstsq(table, np.ones(len(table)), rcond=None)
    if b < 0:
        a, b = float(np.sum(table[:, 0]) / np.sum(table[:, 0] ** 2)), 0.0
    if not a > 0 or not math.isfinite(a):
        raise ValueError("the times that were measured do not grow with the sizes")
    return float(a), float(b)
