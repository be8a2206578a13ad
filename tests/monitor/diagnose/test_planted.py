"""Every planted cause is found, and nothing beside it; what is just not enough is not."""

from __future__ import annotations

import pytest

from rankup.monitor.diagnose import codes, diagnose

from .sick import Case, cases

ALL = cases()


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.code}: {case.name}")
def test_planted(case: Case) -> None:
    found = diagnose(case.trace.recording())
    said = [f"{one.code} {one.message}" for one in found]
    assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), said


def test_every_code_is_planted() -> None:
    assert {case.code for case in ALL if case.code in case.expected} == set(codes.TITLES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_planted_whatever_the_noise(seed: int) -> None:
    for case in ALL:
        found = diagnose(case.trace.but(seed=seed).recording())
        assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), case.name
