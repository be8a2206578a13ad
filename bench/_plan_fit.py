"""Fit the model's constants on measured rows: Levenberg-Marquardt with a prior.

Constants belong to a GPU generation, to the network, or to a framework; none to a source. Priors
are published ceilings, or what the code says where a framework's habit is known to exist.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from _plan_frameworks import FUSED
from _plan_table import Row
from rankup.plan import network
from rankup.plan.estimate import Estimate
from rankup.plan.framework import COMPILED, FRAMEWORKS
from rankup.plan.machine import Machine

Vector = NDArray[np.float64]

# Name -> prior, and its standard deviation in logarithms.
PRIOR = {
    "A100.matmul_efficiency": (0.75, 0.15),
    "A100.matmul_half": (10e9, 1.0),
    "A100.attention_efficiency": (0.4, 0.4),
    "A100.contention": (0.25, 0.7),
    "H100.matmul_efficiency": (0.65, 0.15),
    "H100.matmul_half": (10e9, 1.0),
    "H100.attention_efficiency": (0.25, 0.4),
    "H100.contention": (0.25, 0.7),
    "hbm_efficiency": (0.8, 0.1),
    "launch": (8e-6, 0.4),
    "node_latency": (5e-6, 0.5),
    "node_efficiency": (0.78, 0.1),
    "nic_latency": (12e-6, 0.5),
    "efa_latency": (30e-6, 0.4),
    "nic_efficiency": (0.8, 0.12),
    "tree": (0.4, 0.4),
    "fused": (0.5, 0.3),
    "compiled": (0.4, 0.3),
    "megatron-core.overlap_tensor": (0.6, 0.4),
    "megatron-deepspeed.launches": (1.6, 0.7),
    "nanotron.launches": (1.0, 0.7),
    "nanotron.messages_per_layer": (2.0, 0.7),
    "nanotron.stall": (1e-5, 3.0),
}
START = np.log([prior for prior, _ in PRIOR.values()])
WIDTH = np.array([width for _, width in PRIOR.values()])
_OF_MACHINE = (
    "hbm_efficiency",
    "launch",
    "node_latency",
    "node_efficiency",
    "nic_latency",
    "nic_efficiency",
)
_STEEP = 0.1  # errors beyond count by their size, not its square: single published runs are off
_ROWS = 10  # of a document, beyond which more rows weigh no more


@contextmanager
def constants(x: Vector) -> Iterator[dict[str, float]]:
    """Give the model these constants for a while."""
    value = {name: float(one) for name, one in zip(PRIOR, np.exp(x), strict=True)}
    kept, tree = dict(FRAMEWORKS), network.TREE
    network.TREE = value["tree"]
    for name, habits in kept.items():
        own = {key.partition(".")[2]: value[key] for key in PRIOR if key.startswith(f"{name}.")}
        if "overlap_tensor" in own:
            own["overlap_tensor"] = min(0.95, own["overlap_tensor"])
        for known, key in ((FUSED, "fused"), (COMPILED, "compiled")):
            if habits.traffic == known:
                own["traffic"] = value[key]
        FRAMEWORKS[name] = replace(habits, **own)  # type: ignore[arg-type]
    try:
        yield value
    finally:
        network.TREE = tree
        FRAMEWORKS.update(kept)


def _machine(machine: Machine, value: dict[str, float]) -> Machine:
    generation = "H100" if machine.fp8_speedup else "A100"
    own = {
        key.partition(".")[2]: number for key, number in value.items() if key.startswith(generation)
    } | {key: value[key] for key in _OF_MACHINE}
    if machine.congestion:
        own["nic_latency"] = value["efa_latency"]
    return replace(machine, **own)  # type: ignore[arg-type]


def predict(x: Vector, rows: Sequence[Row]) -> list[Estimate]:
    """Return the model's estimates with these constants."""
    with constants(x) as value:
        return [row.estimate(_machine(row.machine, value)) for row in rows]


def errors(x: Vector, rows: Sequence[Row]) -> Vector:
    """Return the logarithms of predicted over measured seconds."""
    found = predict(x, rows)
    return np.array(
        [math.log(one.seconds / row.seconds) for one, row in zip(found, rows, strict=True)]
    )


def fit(rows: Sequence[Row], steps: int = 10) -> Vector:
    """Return the constants that explain `rows` best, and do not stray far from their prior."""
    many = Counter(row.document for row in rows)
    weight = np.array([min(1.0, _ROWS / many[row.document]) ** 0.5 for row in rows])

    def cost(x: Vector, off: Vector) -> float:
        size = np.abs(off)
        loss = np.where(size < _STEEP, off**2 / 2, _STEEP * (size - _STEEP / 2))
        far = ((x - START) / WIDTH) ** 2
        return float((weight**2 * loss).sum() / _STEEP**2 + far.sum() / 2)

    x, damping = START.copy(), 1e-2
    off = errors(x, rows)
    now = cost(x, off)
    for _ in range(steps):
        slopes = np.column_stack(
            [(errors(x + 1e-3 * one, rows) - off) / 1e-3 for one in np.eye(len(x))]
        )
        steep = weight * np.sqrt(np.minimum(1, _STEEP / np.maximum(np.abs(off), 1e-9))) / _STEEP
        matrix = (slopes * steep[:, None]).T @ (slopes * steep[:, None]) + np.diag(WIDTH**-2.0)
        gradient = (slopes * steep[:, None]).T @ (steep * off) + (x - START) / WIDTH**2
        before = now
        while damping < 1e4:
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), -gradient)
            tried = x + np.clip(step, -0.5, 0.5)
            found = errors(tried, rows)
            if (price := cost(tried, found)) < now:
                x, off, now, damping = tried, found, price, max(damping / 5, 1e-4)
                break
            damping *= 5
        if before - now < 0.01:
            break
    return x
