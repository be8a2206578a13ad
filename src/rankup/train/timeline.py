"""One step of a pipelined run, drawn as it was measured: who computed what, and who waited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from ..parallel.pipeline.run import Pipeline
from ..parallel.pipeline.timeline import Span, draw, idle
from ..runtime.collectives import all_gather_object, barrier
from ..runtime.log import print0
from ..runtime.world import is_root_process


class Timeline:
    """Draws `pipeline-step-N.png`; make and use it on all ranks.

    The picture is of the pipeline that rank 0 is in; its copies and the ranks that share its
    matrices do the same beside it.

    Args:
        pipeline: None draws nothing.
        directory: of the run.
        step: the number of the step.
    """

    def __init__(self, pipeline: Pipeline | None, directory: Path, step: int) -> None:
        self._pipeline, self._directory, self._step = pipeline, directory, step

    @contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Record what is computed within, if it is the step to draw."""
        if self._pipeline is None or step != self._step:
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
