"""Every planted cause is found, and nothing beside it; what is just not enough is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from rankup.base.findings import Level
from rankup.monitor.diagnose import CODES, diagnose
from rankup.monitor.verdict import verdict

from ..handmade import made
from .sick import Case, cases

PAGES = Path(__file__).resolve().parents[3] / "docs" / "findings"
ALL = cases()
FIRST = {case.code: case for case in reversed(ALL) if case.expected == (case.code,)}


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    """Pages say times of day as they are in UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def _again(case: Case) -> bool:
    """True where a finding is found in another shape than the first: in the slow suite alone."""
    return bool(case.expected) and FIRST[case.code] is not case


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=[pytest.mark.slow] * _again(one)) for one in ALL],
    ids=lambda case: f"{case.code}: {case.name}",
)
def test_planted(case: Case) -> None:
    """The first of each code has a headline, and is the example on the code's page."""
    recording = case.trace.recording()
    found = diagnose(recording)
    said = [f"{one.code} {one.message}" for one in found]
    assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), said
    if FIRST[case.code] is case:
        (one,) = found
        page = (PAGES / f"{case.code}.md").read_text(encoding="utf-8")
        example = " ".join(page.split("```text\n")[1].split("```")[0].split())
        assert " ".join(one.message.split()) in example
        assert " ".join(one.todo.split()) in example
        whole = verdict(recording, found)
        assert whole.headline.endswith(".")
        assert not whole.headline.startswith("Healthy")
        assert whole.level == one.level
        assert whole.level in get_args(Level)
        assert 2 <= len(whole.sentences) <= 4


def test_every_code_is_planted() -> None:
    assert set(FIRST) == set(CODES)


@pytest.mark.slow
def test_planted_whatever_the_noise() -> None:
    for case in ALL:
        found = diagnose(case.trace.but(seed=1).recording())
        assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), case.name


def test_gpus_that_are_missing_alike_are_one_finding() -> None:
    recording = made(nodes=3, gpus=0, heads={"gpu_error": "no driver"}, facts={"gpus": 4})
    (one,) = [one for one in diagnose(recording) if one.code == "RK723"]
    assert one.nodes == (0, 1, 2)
    assert one.message.endswith("no GPU can be read: no driver")
