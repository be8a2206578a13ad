"""One step of a pipelined run: who computed what and who waited, measured, in theory, drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from ..base.errors import UserError
from ..parallel.pipeline.run import Pipeline
from ..parallel.pipeline.schedule import Span
from ..runtime.collectives import all_gather_object, barrier
from ..runtime.log import print0
from ..runtime.world import is_root_process


class Timeline:
    """Draws `pipeline-step-N.png`; make and use it on all ranks.

    The picture is of the pipeline that rank 0 is in; its copies and the ranks that share its
    matrices do the same beside it.

    Args:
        directory: of the run.
        step: the number of the step.
    """

    def __init__(self, pipeline: Pipeline, directory: Path, step: int) -> None:
        self._pipeline, self._directory, self._step = pipeline, directory, step

    @contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Record what is computed within, if it is the step to draw."""
        if step != self._step:
            yield
            return
        spans: list[Span] = []
        barrier()  # nodes have clocks of their own: all of them start here
        start = time.monotonic()
        self._pipeline.record = spans.append
        try:
            yield
        finally:
            self._pipeline.record = None
        with_root = 0 in dist.get_process_group_ranks(self._pipeline.group)
        own = [replace(s, start=s.start - start, end=s.end - start) for s in spans]
        everyone = all_gather_object(own if with_root else [])
        if is_root_process():
            self._draw([span for part in everyone for span in part])

    def _draw(self, spans: list[Span]) -> None:
        path = self._directory / f"pipeline-step-{self._step:08d}.png"
        try:
            draw(spans, path)
        except Exception as error:  # a picture is not worth a run
            print0(f"{path.name} could not be drawn ({error})", flush=True)
            return
        print0(
            f"step {self._step}: ranks waited {idle(spans):.0%} of the time; drawn in {path.name}",
            flush=True,
        )


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
