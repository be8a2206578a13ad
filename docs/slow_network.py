"""Draw loss over time and over bytes, from the curves that a benchmark has measured.

.venv/bin/python bench/lowcomm.py --parts accuracy --curves curves.json
.venv/bin/python docs/slow_network.py curves.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from drawing import SIZE, TEXT, plt, save

COLOURS = {
    "ddp": "#222222",
    "local-sgd, H = 10": "#6baed6",
    "diloco, H = 50": "#08519c",
}


def draw(curves: dict[str, list[tuple[float, float, float]]]) -> None:
    """Validation loss over seconds, and over what a worker has sent."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7, 3.6), sharey=True, constrained_layout=True
    )
    for name, points in curves.items():
        seconds, sent, losses = zip(*points, strict=True)
        megabytes = [size / 1e6 for size in sent]
        style = {"color": COLOURS[name], "linewidth": 1.8, "marker": "o", "markersize": 3}
        left.plot(seconds, losses, label=name, **style)
        right.semilogx(megabytes, losses, **style)
    left.set_xlabel("seconds", fontsize=SIZE)
    right.set_xlabel("MB that a worker has sent", fontsize=SIZE)
    left.set_ylabel("validation loss (nats per word)", fontsize=SIZE)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=TEXT)
    right.xaxis.set_major_formatter("{x:g}")
    losses = [loss for points in curves.values() for _, _, loss in points]
    left.set_ylim(top=(min(losses) + max(losses)) / 2)  # the end is what differs
    figure.legend(frameon=False, ncols=4, loc="outside upper center", fontsize=SIZE)
    save("slow-network")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()))
