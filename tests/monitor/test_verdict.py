"""The verdict in words, for runs of all kinds."""

from __future__ import annotations

import pytest

from rankup.monitor.diagnose import diagnose
from rankup.monitor.recording import Recording
from rankup.monitor.verdict import Verdict, verdict

from . import traces
from .handmade import made


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


def test_nothing_recorded() -> None:
    said = of(made(nodes=0, gpus=0, bins=1, samples=0, facts={"gpus": 4}))
    assert said.headline == "Nothing was recorded of this run."


def test_a_failure_comes_before_what_it_cost() -> None:
    trace = traces.one_of_four().but(
        stays=(traces.Stay(0, 3600, state="FAILED", words="Rank 0 failed: ValueError"),)
    )
    said = of(trace.recording())
    assert said.headline == "The run failed after 1 h: Rank 0 failed: ValueError."
    assert "unused GPU" in said.sentences[-1]


def test_a_life_that_was_not_to_start_again() -> None:
    """A node died, Slurm started the job again, and the script refused at once."""
    stays = (
        traces.Stay(0, 1800, state="NODE_FAIL"),
        traces.Stay(1800, 1800, state="FAILED", words="exit code 1"),
    )
    recording = traces.one_of_four().but(stays=stays).recording()
    assert of(recording).headline == "The run failed after 30 min in 2 attempts: exit code 1."
    assert [gap for gap in recording.gaps if gap.end <= gap.begin] == []
