"""Durations and moments as Slurm writes them, and time limits as people do."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.slurm.parse import minutes, moment, parse_time, time_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("30:00", 30),
        ("30:01", 31),
        ("24:00:00", 1440),
        ("1-02:03:04", 1564),
        ("1-02", 1560),
        ("2-00:30", 2910),
        ("UNLIMITED", None),
        ("infinite", None),
        ("NONE", None),
        ("(null)", None),
    ],
)
def test_slurms_durations_are_read_in_minutes(text: str, expected: int | None) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["1h", "1:2:3:4", "-5", "1-", "soon", "1.5"])
def test_what_is_no_duration_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        minutes(text)


@given(st.integers(min_value=1, max_value=10**7))
def test_the_text_of_minutes_reads_back(number: int) -> None:
    assert minutes(time_text(number)) == number
    assert parse_time(time_text(number)) == number


def test_days_are_written_where_there_are_any() -> None:
    assert time_text(24 * 60 + 120) == "1-02:00:00"
    assert time_text(90) == "01:30:00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", 120),
        ("90m", 90),
        ("90min", 90),
        ("1h30m", 90),
        ("1d12h", 2160),
        ("1d 30m", 1470),
        ("2H", 120),
        ("45", 45),
        ("02:00:00", 120),
        ("1-12", 2160),
    ],
)
def test_a_limit_is_read_as_slurm_or_people_write_it(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text", ["", "  ", "0", "0h", "30m1h", "2 hours", "UNLIMITED", "h", "-2h", "2h; rm -rf /"]
)
def test_another_limit_is_refused_with_the_forms_that_are_known(text: str) -> None:
    with pytest.raises(UserError, match="write it as 2h, 90m"):
        parse_time(text)


def test_a_moment_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        assert moment("2026-11-20T20:36:50") == 1795207010
        assert moment("1970-01-02T00:00:00") == 86400
    time.tzset()


@pytest.mark.parametrize("text", ["Unknown", "N/A", "None", "", "2026-13-40T00:00:00"])
def test_no_moment_is_none(text: str) -> None:
    assert moment(text) is None
