"""No recording, however strange, makes a rule, the cost or the verdict fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankup.monitor.billing import cost
from rankup.monitor.diagnose import diagnose, verdict
from rankup.monitor.recording import Event, Facts, Gap, Recording, Steps

from ..handmade import BEGIN, HEALTHY, HOST, RANK, attempt, made

STATES = ["COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "RUNNING", "CANCELLED", "UNKNOWN"]
LEVELS = [np.nan, 0.0, 1.0, 30.0, 100.0, 400.0, 1e9, 4e10, -1.0, np.inf]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    nodes, gpus = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    bins = draw(st.sampled_from([0, 1, 2, 60]))
    width = draw(st.sampled_from([1.0, 10.0, 60.0]))
    seed = draw(st.integers(0, 2**16))
    generator = np.random.default_rng(seed)
    channels: dict[str, Any] = {
        name: generator.choice(LEVELS, (bins, 1)) if draw(st.booleans()) else np.nan
        for name in (*HEALTHY, *HOST)
    }
    channels |= {f"rank_{name}": generator.choice(LEVELS, (bins, 1)) for name in RANK}
    end = BEGIN + bins * width
    attempts = tuple(
        attempt(
            BEGIN + draw(st.sampled_from([-1e6, 0, 50, 1e6])),
            draw(st.sampled_from([None, BEGIN - 10, BEGIN, end, end + 1e5])),
            draw(st.sampled_from(STATES)),
            words=draw(st.sampled_from(["", "CUDA out of memory", "\x1b[2J<script>"])),
            limit=draw(st.sampled_from([None, 0.0, 60.0, 1e5])),
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    facts = {
        "attempts": attempts,
        "gpus": draw(st.sampled_from([None, 0, 1, 4])),
        "ranks": draw(st.sampled_from([None, 0, 1])),
        "unit": draw(st.sampled_from([None, "core-h"])),
        "queued": draw(st.sampled_from([None, 0.0, 1e6])),
    }
    count = draw(st.sampled_from([0, 1, 2, 300]))
    times = BEGIN + generator.choice([np.nan, 0.0, 1.0, 5.0, 1e5], count).cumsum()
    values = [generator.choice(LEVELS, count) for _ in range(5)]
    steps = Steps(
        times,
        np.arange(count),
        *values,
        not_finite=np.arange(draw(st.sampled_from([0, 1, 400]))),
    )
    kinds = st.sampled_from(["checkpoint", "validation", "note", "end"])
    events = tuple(
        Event(BEGIN + draw(st.sampled_from([0, 30, 1e5])), draw(kinds), "x", draw(st.just(5.0)))
        for _ in range(draw(st.integers(0, 2)))
    )
    gaps = (Gap("unheard-of", BEGIN, end, "killed"),) if draw(st.booleans()) else ()
    return made(
        nodes, gpus, bins, width, facts=facts, **channels, steps=steps, events=events, gaps=gaps,
        covered=generator.choice([0, 0.5, 1, np.nan], (bins, nodes)).astype(np.float32),
        running=draw(st.booleans()),
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(recordings())
def test_no_recording_is_too_strange(recording: Recording) -> None:
    with np.errstate(all="ignore"):
        found = diagnose(recording)
    paid = cost(recording)
    said = verdict(recording, found)
    assert said.headline
    if paid.efficiency is not None:
        assert 0 <= paid.efficiency <= 1
        assert paid.wasted is not None
        most = paid.wasted * (1 + 1e-4) + 1e-6
        assert all(0 <= (one.cost or 0) <= most for one in found)
    for text in (said.headline, *said.sentences, *(one.message for one in found)):
        assert "\x1b" not in text
        assert "nan" not in text.replace("NaN", "").split()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bins", [0, 1])
def test_nothing_at_all(bins: int) -> None:
    empty = made(nodes=0, gpus=0, bins=bins, facts={"attempts": (), "gpus": None})
    assert [one.code for one in diagnose(empty)] in ([], ["RK718"])
    bare = replace(empty, facts=Facts("x", "", "", ""))
    diagnose(bare)
