"""The verdict in words, for runs of all kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankup.monitor.diagnose import Verdict, diagnose, verdict
from rankup.monitor.recording import Recording

from . import traces
from .handmade import HEALTHY, UNUSED, made


def of(recording: Recording) -> Verdict:
    return verdict(recording, diagnose(recording))


@pytest.mark.parametrize(
    ("trace", "headline", "level"),
    [
        (
            traces.one_of_four(),
            "Three of four GPUs did nothing: 147 of 196 core-h were wasted.",
            "warning",
        ),
        (traces.short(), "Too short to judge", "ok"),
        (traces.crashed(), "The run failed after 31 min: A rank failed.", "error"),
        (traces.running(), "Running, and nothing is wrong so far.", "ok"),
    ],
)
def test_headlines(trace: traces.Trace, headline: str, level: str) -> None:
    said = of(trace.recording())
    assert said.headline.startswith(headline)
    assert said.level == level
    assert 2 <= len(said.sentences) <= 4


def test_the_headline_names_the_nodes_that_it_is_about() -> None:
    idle = {name: np.repeat([HEALTHY[name], UNUSED[name]], 8) for name in UNUSED}
    said = of(made(nodes=4, **idle))
    assert said.headline.startswith("Two of four nodes did nothing (jrc0003, jrc0004): ")
    base = made(nodes=3)
    heads = (*base.heads[:2], replace(base.heads[2], gpu_error="no driver"))
    said = of(replace(base, heads=heads))
    assert said.headline == "A GPU could not be read (jrc0003)."
    assert "jrc" not in of(made(util=10.0, power=90.0)).headline, "of a run on one node"


def test_nothing_recorded() -> None:
    said = of(made(nodes=0, gpus=0, bins=1, samples=0, facts={"gpus": 4}))
    assert said.headline == "Nothing was recorded of this run."
    said = of(made(util=np.nan, power=np.nan))
    assert said.headline == "Nothing wrong was seen, but what the GPUs did is not on record."


def test_a_failure_comes_before_what_it_cost() -> None:
    trace = traces.one_of_four().but(
        stays=(traces.Stay(0, 3600, state="FAILED", words="Rank 0 failed: ValueError"),)
    )
    said = of(trace.recording())
    assert said.headline == "The run failed after 1 h: Rank 0 failed: ValueError."
    assert "unused GPU" in said.sentences[-1]


def test_an_attempt_that_was_not_to_start_again() -> None:
    """A node died, Slurm started the job again, and the script refused at once."""
    stays = (
        traces.Stay(0, 1800, state="NODE_FAIL"),
        traces.Stay(1800, 1800, state="FAILED", words="exit code 1"),
    )
    recording = traces.one_of_four().but(stays=stays).recording()
    assert of(recording).headline == "The run failed after 30 min in 2 attempts: exit code 1."
    assert [gap for gap in recording.gaps if gap.end <= gap.begin] == []
