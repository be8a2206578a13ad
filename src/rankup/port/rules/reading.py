"""What one rank writes and all ranks read: a race, unless they meet in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from .facts import calls, string
from .guards import guard
from .reduced import is_reduction
from .rule import Hit, Rule


def read_before_written(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK149: all ranks read what rank 0 may still be writing."""
    if not roles.distributed:
        return
    written = list(_written_by_one(source, roles))
    if not written:
        return
    meetings = [
        source.line_of(call)[0]
        for call in source.index.all(cst.Call)
        if (is_reduction(source, call) or call_name(call) in ("barrier", "backward"))
        and not guard(source, roles, call)
    ]
    for call in source.index.all(cst.Call):
        path = _read(source, call)
        if path is None or guard(source, roles, call):
            continue
        line, function = source.line_of(call)[0], source.index.function(call)
        for other, writer in written:
            if other != source.code(path) or source.index.function(writer) is not function:
                continue
            if _either_or(source, writer, call):
                continue
            last = _last_write(source, writer, line)
            if last < line and not any(last < one <= line for one in meetings):
                yield Hit(
                    call,
                    f"reads {other}, which rank 0 may not have written yet",
                    "rankup.barrier() before it",
                )
                break


def _either_or(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two places stand in different branches of one `if`."""
    around = set(source.index.up(other))
    chain = [one, *source.index.up(one)]
    for below, up in pairwise(chain):
        if up in around:
            return isinstance(up, cst.If) and below not in around and below is not other
    return False


def _written_by_one(source: Source, roles: Roles) -> Iterator[tuple[str, cst.Call]]:
    """Paths that rank 0 alone writes to, and the calls."""
    for call, _ in calls(source, "save0", "path0"):
        path = argument(call, "path", 1 if call_name(call) == "save0" else 0)
        if path is not None:
            yield source.code(path), call
    for site in roles.saves:
        if site.source is source and isinstance(site.node, cst.Call):
            path = argument(site.node, "f", 0 if site.dotted == "builtins.open" else 1)
            if path is not None and guard(source, roles, site.node) == "rank0":
                yield source.code(path), site.node


def _read(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """The path that a call reads from."""
    dotted = source.index.called(call)
    if dotted in ("torch.load", "numpy.load", "pandas.read_csv"):
        return call.args[0].value if call.args else None
    if dotted == "builtins.open" and call.args:
        mode = argument(call, "mode", 1)
        return call.args[0].value if mode is None or (string(mode) or "w")[:1] == "r" else None
    if isinstance(call.func, cst.Attribute) and call_name(call) in ("read_text", "read_bytes"):
        path = call.func.value
        made = isinstance(path, cst.Call) and call_name(path) == "Path" and len(path.args) == 1
        return path.args[0].value if made else path  # type: ignore[attr-defined]
    return None


def _last_write(source: Source, call: cst.Call, before: int) -> int:
    """The last line, before another, in which what a call has opened is written to."""
    for up in source.index.up(call):
        if isinstance(up, cst.With):
            return source.last_line_of(up)
        if isinstance(up, cst.Assign) and isinstance(up.targets[0].target, cst.Name):
            name = up.targets[0].target.value
            lines = [
                source.line_of(one)[0] for one in source.index.all(cst.Name) if one.value == name
            ]
            return max(line for line in lines if line < before or line == source.line_of(up)[0])
        if isinstance(up, cst.BaseStatement):
            break
    return source.last_line_of(call)


RULES = (Rule("RK149", "read-before-written", "error", read_before_written),)
