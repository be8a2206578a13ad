"""A start in words: how far it came, why no further, and what it wants of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rankup.login.fetch.explain import Outcome, missing, outcome, wanted
from rankup.sandbox.events import Event

from .handmade import LIMITS, ended, event, url

WANTED = """Traceback (most recent call last):
  File "/home/ada/train.py", line 8, in load
    urlopen(address)
"""
TRACE = """Traceback (most recent call last):
  File "/home/ada/train.py", line 23, in <module>
    main()
  File "/home/ada/train.py", line 8, in load
    urlopen(address)
  File "/usr/lib/python3.11/urllib/request.py", line 216, in urlopen
    return opener.open(url)
  File "<frozen os>", line 679, in __getitem__
"""


def _outcome(events: Sequence[Event], **end: object) -> Outcome:
    return outcome(events, ended(**end), LIMITS)  # type: ignore[arg-type]


def _raised(kind: str, message: str, error: str = TRACE) -> Event:
    return event("end", code=1, error=error, type=kind, message=message)


def _said(events: Sequence[Event], **end: object) -> str:
    return _outcome(events, **end).why


def test_a_stop_is_what_counts_however_the_child_ended() -> None:
    stop = event("stop", reached="batch and forward")
    for why in ("exit", "stopped", "time"):
        assert _outcome([stop], why=why, code=-9).reached == "first batch and forward"
    assert _outcome([event("stop", reached="")]).reached == ""


def test_one_that_never_trains_is_told_apart_from_one_that_fails() -> None:
    end = event("end", code=0, error="", type="", message="")
    assert "never trains: it ended and drew no batch" in _said([end])
    drawn = event("batch", n=1, where="train.py:9")
    assert "did no forward after its first batch" in _said([drawn, end])
    end = event("end", code=3, error="", type="SystemExit", message="3")
    assert _said([end], code=3).startswith("the script ended with code 3; it had drawn no batch")


@pytest.mark.parametrize(
    ("kind", "message", "expected", "cut"),
    [
        (
            "urllib.error.HTTPError",
            "HTTP Error 404: Not Found",
            "no such file: has it moved? (http://a/x)",
            False,
        ),
        ("requests.HTTPError", "410 Client Error: Gone for url: http://a", "no such file", False),
        ("HfHubHTTPError", "401 Client Error.", "token", False),
        ("urllib.error.HTTPError", "HTTP Error 503: Busy", "try again later", False),
        ("urllib.error.ContentTooShortError", "got only 5 out of 9 bytes", "broke", True),
        ("requests.exceptions.ChunkedEncodingError", "Connection broken", "broke", True),
        (
            "urllib.error.URLError",
            "<urlopen error [Errno 111] refused>",
            "is there a network here, or a proxy? (http://a/x)",
            True,
        ),
        ("MemoryError", "", "--memory", False),
    ],
)
def test_errors_of_the_network_and_of_memory_are_explained(
    kind: str, message: str, expected: str, cut: bool
) -> None:
    got = _outcome([url("http://a/x"), _raised(kind, message)], code=1)
    assert expected in got.why
    assert got.why.startswith(f"the script ended with {kind}; ")
    assert got.cut == cut
    assert not got.pretend


def test_a_script_that_wants_a_gpu_is_told_apart_from_one_that_merely_asks() -> None:
    asked = event("gpu", what="torch.cuda.is_available()", where="train.py:2")
    wants = _raised("AssertionError", "", TRACE + "    assert torch.cuda.is_available()\n")
    assert _outcome([asked, wants], code=1).pretend
    assert "train.py:2" in _said([asked, wants], code=1)
    left = event("end", code=1, error="", type="SystemExit", message="no GPU")
    assert _outcome([asked, left], code=1).pretend
    assert not _outcome([asked, _raised("KeyError", "'lr'")], code=1).pretend
    assert not _outcome([left], code=1).pretend


def test_a_script_that_expects_torchrun_is_recognised() -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID"):
        assert _outcome([_raised("KeyError", f"'{name}'")], code=1).pretend
    assert not _outcome([_raised("KeyError", "'RANKING'")], code=1).pretend


def test_one_that_was_killed_says_by_what() -> None:
    assert "signal 9; its first line was not reached; perhaps for its memory" in _said([], code=-9)
    assert "signal 15" in _said([], code=-15)
    assert "in native code" in _said([], code=3)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("int() argument must be a string, not 'NoneType'", "int(os.environ.get('SLURM_PROCID'))"),
        ("unsupported operand type(s): 'NoneType'", "local = os.getenv('LOCAL_RANK') % 4"),
    ],
)
def test_a_launchers_variable_that_is_missed_as_none_is_recognised(message: str, line: str) -> None:
    trace = f'  File "/home/ada/train.py", line 3, in <module>\n    {line}\nTypeError: {message}\n'
    assert _outcome([_raised("TypeError", message, trace)], code=1).pretend
    other = trace.replace(line, "len(os.environ.get('MY_DATA'))")
    assert not _outcome([_raised("TypeError", message, other)], code=1).pretend


def test_where_no_connection_ever_stood_none_broke() -> None:
    errors = [
        ("httpx.ConnectError", "[Errno -3] Temporary failure in name resolution"),
        ("requests.exceptions.ConnectionError", "Max retries exceeded (NewConnectionError)"),
        ("OSError", "We couldn't connect to 'https://hub' to load the files"),
    ]
    for kind, message in errors:
        line = _said([url("https://hub/api"), _raised(kind, message)], code=1)
        assert "; no connection; is there a network here, or a proxy? (https://hub/api)" in line


def _ended_by(kind: str, message: str) -> Event:
    return event("end", code=1, error=WANTED, type=kind, message=message)


def _missing(events: Sequence[Event], brought: Mapping[str, str] | None = None) -> list[str]:
    return missing(events, ended(1), LIMITS, brought or {})


def test_what_was_wanted_is_said_once_with_its_last_place() -> None:
    events = [
        url("http://a/x", where="t.py:1"),
        event("connect", host="a", port=80, refused=True, where="t.py:1"),
        event("connect", host="db.test", port=5432, refused=True, where="t.py:9 in log"),
        url("http://a/y"),
        url("http://a/x", where="t.py:4"),
    ]
    assert [*wanted(events).items()] == [
        ("db.test:5432", "t.py:9 in log"),
        ("http://a/y", ""),
        ("http://a/x", "t.py:4"),
    ]


def test_a_program_that_was_given_a_url_wanted_it() -> None:
    events = [
        event("spawn", words=["uname"], where="t.py:1"),
        event("spawn", words=["curl", "http://a/x"], where="t.py:2 in load"),
        _ended_by("subprocess.CalledProcessError", "Command returned 6"),
    ]
    assert _missing(events)[-1] == "it wanted http://a/x (t.py:2 in load)"


def test_a_script_that_downloads_at_every_start_is_told_to_look_first() -> None:
    second = [url("http://a/big.bin"), _ended_by("urllib.error.URLError", "")]
    advice = "it downloads at every start: let it look for /data/big.bin first"
    assert _missing(second, {"http://a/big.bin": "/data/big.bin"})[-1] == advice
    assert advice not in _missing(second, {})


def test_what_has_nothing_to_do_with_the_network_is_the_scripts_own_error() -> None:
    said = _missing([_ended_by("FileNotFoundError", "[Errno 2] No such file: 'x.npy'")])
    assert said == ["FileNotFoundError at train.py:8 in load: [Errno 2] No such file: 'x.npy'"]
