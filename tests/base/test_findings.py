"""One printer and one JSON form for all findings."""

from __future__ import annotations

import io
import json

from rankup.base.findings import Finding, as_json, exit_code, show

FINE = Finding("RK501", "ok", "machine", "a laptop")
DEAR = Finding("RK502", "warning", "caches", "in $HOME", "set HF_HOME")
WRONG = Finding("RK503", "error", "torch", "twice", "remove one")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines() -> None:
    out = io.StringIO()
    show([FINE, DEAR, WRONG], out)
    assert out.getvalue().splitlines() == [
        "ok    machine  a laptop",
        "WARN  caches   in $HOME [RK502]",
        "               -> set HF_HOME",
        "ERROR torch    twice [RK503]",
        "               -> remove one",
    ]


def test_colours_on_a_terminal_only() -> None:
    out = _Terminal()
    show([WRONG], out)
    assert out.getvalue().startswith("\033[1;31mERROR\033[0m torch")


def test_json_holds_everything() -> None:
    [found] = json.loads(as_json([WRONG]))
    assert found == {
        "code": "RK503",
        "level": "error",
        "place": "torch",
        "message": "twice",
        "todo": "remove one",
    }


def test_only_an_error_fails() -> None:
    assert exit_code([FINE, DEAR]) == 0
    assert exit_code([FINE, WRONG, DEAR]) == 1
    assert exit_code([]) == 0
