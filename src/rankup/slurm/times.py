"""Durations and moments, as Slurm writes them and as people do."""

from __future__ import annotations

import re
import time

from ..base.errors import UserError

# Slurm prints one of these where there is no limit or no value.
_NONE = frozenset(
    ("UNLIMITED", "INFINITE", "NONE", "N/A", "(NULL)", "", "NOT_SET", "PARTITION_LIMIT", "INVALID")
)
_DAYS = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_CLOCK = re.compile(r"([0-9]{1,8})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_UNITS = re.compile(
    r"(?:([0-9]{1,4})\s*d)?\s*(?:([0-9]{1,6})\s*h)?\s*(?:([0-9]{1,8})\s*m(?:in)?)?", re.IGNORECASE
)


def minutes(text: str) -> int | None:
    """A duration as Slurm prints it, in minutes, begun ones counted; None where there is no limit.

    "30" is minutes, "30:00" minutes and seconds, "2:00:00" hours, "1-02" days and hours.
    Raises ValueError for anything else.
    """
    text = text.strip()
    if text.upper() in _NONE:
        return None
    if match := _DAYS.fullmatch(text):
        days, hours, mins, seconds = (int(part or 0) for part in match.groups())
    elif match := _CLOCK.fullmatch(text):
        numbers = [int(part) for part in match.groups() if part is not None]
        days = 0
        hours, mins, seconds = numbers if len(numbers) == 3 else (0, *numbers, 0)[:3]
    else:
        raise ValueError(f"{text!r} is not a duration as Slurm writes it")
    return ((days * 24 + hours) * 60) + mins + -(-seconds // 60)


def parse_time(text: str) -> int:
    """A time limit given by a user, in minutes: Slurm's forms, and 2h, 90m, 1h30m, 1d12h.

    Raises UserError for anything else, for less than a minute and for "unlimited": no job without
    a deadline.
    """
    advice = "write it as 2h, 90m, 1h30m, 1d12h, or as Slurm does: 02:00:00, 1-12:00:00"
    stripped = text.strip()
    match = _UNITS.fullmatch(stripped)
    if stripped and match:
        days, hours, mins = (int(part or 0) for part in match.groups())
        found: int | None = (days * 24 + hours) * 60 + mins
    else:
        try:
            found = minutes(stripped) if stripped else 0
        except ValueError:
            raise UserError(f"--time {text!r} is not a time limit; {advice}") from None
    if found is None:
        raise UserError(f"--time {text!r}: a job needs a limit, by which it saves; {advice}")
    if found < 1:
        raise UserError(f"--time {text!r} is less than a minute; {advice}")
    return found


def parse_seconds(text: str, option: str) -> int:
    """A duration given by a user for `option`, in seconds: as `parse_time`, and 90s.

    Raises UserError for anything else.
    """
    if match := re.fullmatch(r"([1-9][0-9]{0,7})\s*s(?:ec)?", text.strip(), re.IGNORECASE):
        return int(match[1])
    try:
        return parse_time(text) * 60
    except UserError as error:
        raise UserError(str(error).replace("--time", option)) from None


def time_text(minutes: int) -> str:
    """Minutes in the form that every Slurm command reads: "02:00:00", "1-02:00:00"."""
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def moment(text: str) -> float | None:
    """A local time as Slurm prints it ("2026-11-20T20:36:50"), in unix seconds; None for none."""
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
