"""Why a start without a network failed: what it wanted, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rankup.sandbox.events import Event
from rankup.login.fetch.missing import First, missing, wanted

from .handmade import LIMITS, ended, event, new, url

HERE = Path("/home/ada")
TRACE = """Traceback (most recent call last):
  File "/home/ada/train.py", line 8, in load
    urlopen(address)
"""


def _raised(kind: str, message: str) -> Event:
    return event("end", code=1, error=TRACE, type=kind, message=message)


def _missing(events: Sequence[Event], first: First | None = None) -> list[str]:
    return missing(events, ended(1), LIMITS, first, HERE)


def test_what_was_wanted_is_said_once_with_its_last_place() -> None:
    events = [
        url("http://a/x", where="t.py:1"),
        event("connect", host="a", port=80, refused=True, where="t.py:1"),
        event("connect", host="db.test", port=5432, refused=True, where="t.py:9 in log"),
        url("http://a/y"),
        url("http://a/x", where="t.py:4"),
    ]
    assert wanted(events) == ["db.test:5432 (t.py:9 in log)", "http://a/y", "http://a/x (t.py:4)"]


def test_a_program_that_was_given_a_url_wanted_it() -> None:
    events = [
        event("spawn", words=["uname"], where="t.py:1"),
        event("spawn", words=["curl", "http://a/x"], where="t.py:2 in load"),
        _raised("subprocess.CalledProcessError", "Command returned 6"),
    ]
    assert _missing(events)[-1] == "it wanted http://a/x (t.py:2 in load)"


def test_a_script_that_downloads_at_every_start_is_told_to_look_first() -> None:
    before = [url("http://a/big.bin"), new("/data/big.bin")]
    second = [url("http://a/big.bin"), _raised("urllib.error.URLError", "")]
    advice = "it downloads at every start: let it look for /data/big.bin first"
    here = First(before, reached=True, files={"/data/big.bin"})
    assert _missing(second, here)[-1] == advice
    gone = First(before, reached=True, files=set())
    assert advice not in _missing(second, gone)


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("FileNotFoundError", "[Errno 2] No such file: 'x.npy'", "relative to /home/ada"),
        ("FileNotFoundError", "[Errno 2] No such file: '/d/x.npy'", "/d/x.npy is not here"),
        ("FileExistsError", "[Errno 17] File exists: 'runs'", "a job will not start either"),
        ("KeyError", "'lr'", "that is not why it failed"),
    ],
)
def test_what_has_nothing_to_do_with_the_network_is_said_to(
    kind: str, message: str, expected: str
) -> None:
    assert _missing([_raised(kind, message)])[-1].endswith(expected)
