"""`--pp-timeline` draws a step of a pipelined run as it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.image import imread

from rankup.base.errors import UserError
from rankup.parallel.pipeline.schedule import Span
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.timeline import draw
from tests.parallel.tasks import SmallLM
from tests.pool import RankPool

from .runs import Report, train_task

OPTIONS = TrainOptions(12, 3, 4, optimizer="sgd", lr=0.1, clip=1.0, seed=7, dp=2, pp=2)


def _train(
    world: World, directory: Path, options: TrainOptions = OPTIONS
) -> tuple[Report, list[Span]]:
    drawn: list[Span] = []

    def drawing(spans: list[Span], path: Path) -> None:
        drawn.extend(spans)
        draw(spans, path)

    with mock.patch("rankup.train.timeline.draw", drawing):
        report = train_task(world, SmallLM(options), options, directory, False)
    return report, drawn


@pytest.mark.slow
def test_the_third_step_is_drawn(ranks: RankPool, tmp_path: Path) -> None:
    """Two pipelines of two stages, two chunks each: the picture is of the first one."""
    options = replace(OPTIONS, pp_timeline=True)
    (report, spans), *others = ranks.run(4, _train, tmp_path / "drawn", options, timeout=200)
    assert report.error == ""
    assert "step 3: ranks waited " in report.output
    assert {(s.rank, s.stage, s.chunk, s.kind) for s in spans} == {
        (stage, stage, chunk, kind)
        for stage in (0, 1)
        for chunk in (0, 1)
        for kind in ("forward", "backward")
    }
    assert len(spans) == 8
    assert all(0 < s.start < s.end < 60 for s in spans), "seconds since the step began"
    assert all(drawn == [] and "drawn in" not in other.output for other, drawn in others)
    [picture] = (tmp_path / "drawn").glob("pipeline-step-*.png")
    assert picture.name == "pipeline-step-00000003.png"
    assert imread(picture).std() > 0.05


def test_without_a_pipeline_there_is_nothing_to_draw() -> None:
    options = TrainOptions(strategy="fsdp", pp_timeline=True)
    with pytest.raises(UserError, match="not cut into any; add --strategy pp"):
        options.layout(2, 2)
