"""How findings of scripts are printed: lines like ruff's, JSON, or GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from ..base.findings import Finding
from ..base.text import clean, clean_lines  # names of files, lines of batch files
from .check import split

Format = Literal["text", "json", "github"]


def formatted(findings: Sequence[Finding], style: Format) -> str:
    """The findings as text, with a last line that counts them; nothing to say gives a line too."""
    if style == "json":
        return json.dumps([_entry(one) for one in findings], indent=2) + "\n"
    if style == "github":
        return "".join(_annotation(one) + "\n" for one in findings)
    lines = []
    for one in findings:
        lines.append(clean_lines(f"{one.place}: {one.code} {one.message}"))
        if one.todo:
            lines.append(clean_lines(f"    -> {one.todo}"))
    lines.append(_summary(findings))
    return "\n".join(lines) + "\n"


def _summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing found"
    errors = sum(one.level == "error" for one in findings)
    warnings = len(findings) - errors
    words = [
        f"{number} {word}{'s' if number != 1 else ''}"
        for number, word in ((errors, "error"), (warnings, "warning"))
        if number
    ]
    return f"found {' and '.join(words)}"


def _entry(one: Finding) -> dict[str, object]:
    file, line, column = split(one.place)
    return {
        "code": one.code,
        "level": one.level,
        "file": file,
        "line": line,
        "column": column,
        "message": one.message,
        "todo": one.todo,
    }


def _annotation(one: Finding) -> str:
    file, line, column = split(one.place)
    where = f"file={_property(clean(file))},line={line},col={column},title={one.code}"
    text = one.message + (f"; {one.todo}" if one.todo else "")
    return f"::{one.level} {where}::{_data(clean_lines(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
