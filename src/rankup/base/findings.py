"""Findings are data: a stable code, a level, a place, what it means, what to do.

`doctor`, `check` and `report` all produce them; here are their one printer and their JSON form.
Each code has a page, `docs/findings/CODE.md` or `docs/rules/CODE.md`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TextIO

from .errors import EXIT_FAILED

Level = Literal["ok", "warning", "error"]
_SIGNS: dict[Level, str] = {"ok": "ok", "warning": "WARN", "error": "ERROR"}
_COLOURS: dict[Level, str] = {"ok": "32", "warning": "33", "error": "1;31"}
_NOQA = re.compile(r"#\s*noqa\b(?:\s*:\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Attributes:
        code: stable and documented: RK1xx check, RK50x to RK53x doctor, RK54x env, RK7xx
            report.
        level: an error keeps a job from running, a warning may cost time or money.
        place: what was looked at (`caches`, `train.py:12`).
        message: what was found, in one line.
        todo: what to do about it; empty where nothing is.
    """

    code: str
    level: Level
    place: str
    message: str
    todo: str = ""


def page(code: str, title: str, finds: Callable[..., Any]) -> str:
    """Return a code's page of the documentation: the docstring of the function that finds it."""
    return f"# {code}: {title}\n\n{inspect.getdoc(finds)}\n"


def silenced(code: str, line: str) -> bool:
    """Return True where a line has `# noqa` for every code, or `# noqa: CODE, …` with this one."""
    match = _NOQA.search(line)
    return match is not None and (match[1] is None or code in re.split(r"[,\s]+", match[1].upper()))


def exit_code(findings: Iterable[Finding]) -> int:
    """1 where there is an error, else 0."""
    return EXIT_FAILED if any(one.level == "error" for one in findings) else 0


def show(findings: Iterable[Finding], out: TextIO | None) -> None:
    """Print a line for each finding, in colour on a terminal, with what to do below it.

    Text from elsewhere must be clean of control characters already (`base.text.clean`).
    """
    findings = list(findings)
    places = max((len(one.place) for one in findings), default=0)
    colours = out is not None and out.isatty()  # there is no stdout where it is closed
    for one in findings:
        sign = f"{_SIGNS[one.level]:5}"
        if colours:
            sign = f"\033[{_COLOURS[one.level]}m{sign}\033[0m"
        code = f" [{one.code}]" if one.level != "ok" else ""
        print(f"{sign} {one.place:{places}}  {one.message}{code}", file=out)
        if one.todo:
            print(f"{'':6}{'':{places}}  -> {one.todo}", file=out)


def as_json(findings: Iterable[Finding]) -> str:
    """A JSON list of objects with the attributes of `Finding`."""
    return json.dumps([asdict(one) for one in findings], indent=2)
