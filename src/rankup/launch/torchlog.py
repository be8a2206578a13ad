"""torchrun's own account of a failure, as it stands in a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .failure import broken_by_peer, said, timed_out

_RULE = re.compile(r"^(=|-){10,}\s*$")
_ROOT = "Root Cause (first observed failure):"
_FIELD = re.compile(r"^  (\w+) +: ?(.*)$")
_CODE = re.compile(r"(-?\d+)")
_LINE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
_TRACEBACK = "Traceback (most recent call last):"
_AGENT = (
    "torch/distributed/run.py",
    "torch/distributed/launcher",
    "torch/distributed/elastic/agent",
)
# Sent by launchers to whoever is left, or raised by libraries whose peer is gone.
_FOLLOWS = (-15, -2, -1)
_ABORT = -6


@dataclass(frozen=True)
class Root:
    """An agent's "Root Cause" block.

    Attributes:
        exit_code: negative for a signal.
        traceback: the rank's own, where the block or the log has it.
        weight: 0 for a cause, more the more likely it only followed from another one.
    """

    rank: int
    host: str
    time: str
    exit_code: int
    traceback: str
    weight: int

    @property
    def message(self) -> str:
        """The exception in a line, or how the process ended."""
        lines = [line for line in self.traceback.splitlines() if line.strip()]
        return lines[-1].strip() if lines else said(self.exit_code)


def root_causes(lines: Sequence[str]) -> list[Root]:
    """Every agent's root cause, the likeliest first."""
    found = []
    for block in _blocks(lines):
        matches = [match for line in block if (match := _FIELD.match(line))]
        fields: dict[str, str] = {match[1]: match[2] for match in matches}
        rank = _CODE.search(fields.get("rank", ""))
        code = _CODE.search(fields.get("exitcode", ""))
        if rank is None or code is None:
            continue
        number, exit_code = int(rank[1]), int(code[1])
        trace = _own_traceback(block) or rank_traceback(lines, number)
        weight = _weight(exit_code, trace)
        host, when = fields.get("host", "?"), fields.get("time", "")
        found.append(Root(number, host, when, exit_code, trace, weight))
    return sorted(found, key=lambda root: (root.weight, root.time))


def killed_locally(lines: Sequence[str]) -> tuple[int, int] | None:
    """Exit code and local rank in an agent's line "failed (exitcode: ...)", the first one."""
    for line in lines:
        if match := _LINE.search(line):
            return int(match[1]), int(match[2])
    return None


def rank_traceback(lines: Sequence[str], rank: int) -> str:
    """What this rank printed as its last traceback; torch marks a rank's lines by its number."""
    prefix = f"[rank{rank}]:"
    own = [line[len(prefix) :].removeprefix(" ") for line in lines if line.startswith(prefix)]
    starts = [number for number, line in enumerate(own) if line.startswith(_TRACEBACK)]
    return "\n".join(own[starts[-1] :]).rstrip() if starts else ""


def plain_tracebacks(lines: Sequence[str]) -> list[str]:
    """Tracebacks that no rank's number marks and that are not an agent's own."""
    found: list[list[str]] = []
    inside = False
    for line in lines:
        if line.startswith(_TRACEBACK):
            found.append([line])
            inside = True
        elif inside:
            found[-1].append(line)
            inside = line.startswith((" ", "\t"))
    texts = ["\n".join(block) for block in found]
    return [text for text in texts if not any(sign in text for sign in _AGENT)]


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    for start, line in enumerate(lines):
        if line.strip() != _ROOT:
            continue
        block: list[str] = []
        for following in lines[start + 1 : start + 500]:
            if _RULE.match(following):
                break
            block.append(following)
        yield block


def _own_traceback(block: Sequence[str]) -> str:
    """The traceback in the block: torch writes it there for a function under @record."""
    for number, line in enumerate(block):
        if line.startswith("  traceback : ") and _TRACEBACK in line:
            rest = [_TRACEBACK, *block[number + 1 :]]
            return "\n".join(text.removeprefix("  ") for text in rest).rstrip()
    return ""


def _weight(exit_code: int, trace: str) -> int:
    last = trace.splitlines()[-1] if trace else ""
    if broken_by_peer(last):
        return 3
    if exit_code in _FOLLOWS:
        return 4
    if timed_out(last):
        return 2
    if exit_code == _ABORT or (exit_code > 0 and not trace):
        return 1
    return 0
