"""Draw the README's picture from two run directories of `rankup demo`.

.venv/bin/python docs/loss_curves.py runs/demo/ID runs/demo/ID docs/loss-curves.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def losses(run: str) -> list[float]:
    """Training loss of each step."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def draw(one: str, two: str, picture: str) -> None:
    """Two curves over each other, and their relative difference below."""
    first, second = losses(one), losses(two)
    steps = range(1, len(first) + 1)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7, 4.5), sharex=True, height_ratios=[3, 1], constrained_layout=True
    )
    above.plot(steps, first, color="#9ecae1", linewidth=6, label="1 rank")
    above.plot(steps, second, color="#08306b", linewidth=1.2, label="2 ranks")
    above.set_ylabel("training loss (nats per byte)")
    above.legend(frameon=False)
    difference = [abs(a - b) / a for a, b in zip(first, second, strict=True)]
    below.semilogy(steps, [max(d, 1e-9) for d in difference], ".", color="#08306b", markersize=3)
    below.axhline(1e-5, color="#cb181d", linewidth=1, linestyle="--")
    below.text(1, 1.4e-5, "promised: 1e-5", color="#cb181d", fontsize=8)
    below.set_ylim(1e-9, 1e-4)
    below.set_ylabel("relative\ndifference")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    draw(*sys.argv[1:4])
