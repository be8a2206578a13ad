"""What the pictures are drawn with: boxes, arrows, words, and one way to save."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from PIL import Image

HERE = Path(__file__).resolve().parent / "pictures"
RANKS = ("#6baed6", "#fdae6b", "#74c476", "#bcbddc")  # a colour belongs to a rank
SUM, EMPTY, LINE, TEXT = "#08306b", "#f7f7f7", "#bbbbbb", "#222222"
SIZE = 10


def canvas(width: float, height: float, inches: float) -> Axes:
    """Empty axes from (0, 0) to (width, height), upside down so that y runs down the page."""
    figure, axes = plt.subplots(figsize=(7, inches))
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return axes


def box(
    axes: Axes, x: float, y: float, w: float, h: float, colour: str = EMPTY, text: str = ""
) -> None:
    axes.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor=LINE, linewidth=0.8))
    ink = "white" if colour == SUM else TEXT
    axes.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=SIZE, color=ink)


def say(axes: Axes, x: float, y: float, text: str, at: str = "center", bold: bool = False) -> None:
    weight = "bold" if bold else "normal"
    axes.text(x, y, text, ha=at, va="center", fontsize=SIZE, color=TEXT, weight=weight)


def arrow(axes: Axes, x: float, y: float, to_x: float, to_y: float, both: bool = False) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (x, y), (to_x, to_y), arrowstyle="<|-|>" if both else "-|>", color=TEXT,
            mutation_scale=11, linewidth=1.1, shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def save(name: str) -> None:
    """The figure under way as docs/pictures/NAME.png."""
    HERE.mkdir(exist_ok=True)
    drawn = io.BytesIO()
    plt.savefig(drawn, dpi=130)
    plt.close()
    # Few colours make a small file.
    Image.open(drawn).convert("RGB").quantize(48).save(HERE / f"{name}.png", optimize=True)
