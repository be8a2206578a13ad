"""What each stage did when: recorded, compared with theory, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError


@dataclass(frozen=True)
class Span:
    """One computation of one stage on one chunk.

    Attributes:
        kind: "forward", "backward", or "weights" where a schedule computes their gradient apart.
        start, end: seconds on this machine's monotonic clock.
    """

    rank: int
    stage: int
    chunk: int
    kind: str
    start: float
    end: float


def bubble(schedule: str, ranks: int, chunks: int, virtual: int = 2) -> float:
    """Share of the time in which a rank waits, in theory.

    All stages take equally long, messages no time. GPipe (Huang et al., 2019) and 1F1B
    (Narayanan et al., 2019) wait equally long, they differ in memory; interleaved after Narayanan
    et al., 2021, for a number of chunks that is a multiple of the ranks.

    Args:
        ranks: ranks on the pp axis.
        virtual: stages per rank, of interleaved.

    Raises:
        UserError: no formula for this schedule.
    """
    fill = ranks - 1
    if schedule == "naive":
        return fill / ranks
    if schedule in ("gpipe", "1f1b"):
        return fill / (chunks + fill)
    if schedule == "interleaved":
        return fill / (chunks * virtual + fill)
    raise UserError(
        f"no formula for the bubble of {schedule!r}; there is one for naive, gpipe, 1f1b and "
        f"interleaved"
    )


def idle(spans: Sequence[Span], shortest: float = 0.0) -> float:
    """Share of the time in which a rank waited, measured: mean over the ranks of one step.

    Args:
        shortest: seconds; shorter gaps are the time to hand a chunk over, and no waiting.
    """
    if not spans:
        raise ValueError("no spans: nothing was recorded")
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    ranks = {s.rank for s in spans}
    waited = 0.0
    for rank in ranks:
        own = sorted((s.start, s.end) for s in spans if s.rank == rank)
        edges = [start, *(edge for span in own for edge in span), end]
        gaps = (after - before for before, after in zip(edges[::2], edges[1::2], strict=True))
        waited += sum(gap for gap in gaps if gap >= shortest)
    return waited / ((end - start) * len(ranks))


def draw(spans: Sequence[Span], path: Path, title: str = "") -> None:
    """Draw a step as a PNG: a row per rank, a bar per computation, marked with its chunk."""
    from matplotlib.figure import Figure

    colours = {"forward": "#4c78a8", "backward": "#f58518", "weights": "#54a24b"}
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    narrow = (end - start) * 1000 / 80  # a number would not fit
    ranks = sorted({s.rank for s in spans})
    figure = Figure(figsize=(10, 0.6 * len(ranks) + 1.2), layout="constrained")
    axes = figure.subplots()
    for span in spans:
        length = (span.end - span.start) * 1000
        left = (span.start - start) * 1000
        # Later stages of one rank are paler, so that rounds of an interleaved pipeline show.
        alpha = 1 - 0.5 * (span.stage // len(ranks) % 2)
        axes.barh(
            span.rank,
            length,
            left=left,
            height=0.8,
            color=colours[span.kind],
            alpha=alpha,
            edgecolor="white",
            linewidth=0.6,
        )
        if length > narrow:
            axes.text(
                left + length / 2, span.rank, str(span.chunk), ha="center", va="center", fontsize=7
            )
    for kind in dict.fromkeys(s.kind for s in spans):
        axes.barh(0, 0, color=colours[kind], label=kind)
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(title or f"one step, {idle(spans):.0%} of the time waiting", loc="left")
    axes.legend(loc="upper right", ncols=3, bbox_to_anchor=(1, 1.18), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
