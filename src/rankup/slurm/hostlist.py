"""Slurm's short form of node names: `jwb[0001-0003,0010],login1`. Pure Python."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

# Slurm itself refuses a range of more than 65536 hosts.
MAX_HOSTS = 65536

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


def expand(hostlist: str, limit: int = MAX_HOSTS) -> list[str]:
    """The names behind a host list, in its order, as `scontrol show hostnames` gives them.

    Raises ValueError for a malformed list and for one of more than `limit` names; of the latter
    no name is made.
    """
    patterns = [_parts(text, hostlist, limit) for text in _split(hostlist)]
    total = 0
    for parts in patterns:
        count = 1
        for part in parts:
            count *= len(part)
        total += count
        if total > limit:
            raise ValueError(f"host list {_short(hostlist)} has more than {limit} names")
    return ["".join(pieces) for parts in patterns for pieces in itertools.product(*parts)]


def compress(hosts: Iterable[str]) -> str:
    """The short form of names. Their order is kept: `expand(compress(hosts)) == list(hosts)`.

    Only a number at the end of a name is folded: Slurm refuses text behind the last bracket.
    Raises ValueError for a name that is empty or holds one of `,[]` or white space.
    """
    # Runs of neighbours with one prefix; each run holds ranges [first, last] as texts.
    runs: list[tuple[str, list[list[str]]]] = []
    for host in hosts:
        if not host or re.search(r"[,\[\]\s]", host):
            raise ValueError(f"{host!r} is not a host name")
        match = _NUMBERED.fullmatch(host)
        prefix, number = match.groups() if match else (host, "")
        if not (runs and number and runs[-1][0] == prefix and runs[-1][1]):
            runs.append((prefix, [[number, number]] if number else []))
            continue
        ranges = runs[-1][1]
        first, last = ranges[-1]
        if number == str(int(last) + 1).zfill(len(first)):
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(_folded(prefix, ranges) for prefix, ranges in runs)


def short(hosts: Sequence[str]) -> str:
    """`compress` for people: names that it refuses stand side by side."""
    try:
        return compress(hosts)
    except ValueError:
        return ", ".join(hosts)


def _folded(prefix: str, ranges: Sequence[Sequence[str]]) -> str:
    texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    if not texts:
        return prefix
    if len(texts) == 1 and "-" not in texts[0]:
        return prefix + texts[0]
    return f"{prefix}[{','.join(texts)}]"


def _split(hostlist: str) -> Iterator[str]:
    """The parts of the list between those commas that stand outside brackets."""
    depth = start = 0
    for place, character in enumerate(hostlist):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if depth not in (0, 1):
            raise ValueError(f"host list {_short(hostlist)}: brackets do not match")
        if character == "," and depth == 0:
            if text := hostlist[start:place].strip():
                yield text
            start = place + 1
    if depth:
        raise ValueError(f"host list {_short(hostlist)}: brackets do not match")
    if text := hostlist[start:].strip():
        yield text


def _parts(text: str, hostlist: str, limit: int) -> list[Sequence[str]]:
    """`r[0-1]n2` -> [["r"], ["0", "1"], ["n2"]]; numbers are made when asked for, not before."""
    if re.search(r"\s", text):
        raise ValueError(f"host list {_short(hostlist)}: white space in a name")
    parts: list[Sequence[str]] = []
    for piece in re.split(r"(\[[^\]]*\])", text):
        if piece.startswith("["):
            parts.append(_numbers(piece[1:-1], hostlist, limit))
        elif piece:
            parts.append([piece])
    return parts


def _numbers(ranges: str, hostlist: str, limit: int) -> list[str]:
    numbers: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"host list {_short(hostlist)}: {_short(text)} is not a range")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise ValueError(f"host list {_short(hostlist)}: the range {text} runs backwards")
        if len(numbers) + count > limit:
            raise ValueError(f"host list {_short(hostlist)} has more than {limit} names")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
