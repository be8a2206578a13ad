"""What commands would print on the nodes of a made-up allocation."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from ...base.files import open_regular
from .allocation import Allocation

_AWK = re.compile(
    r"\s*(NR\s*==\s*(\d+))?\s*\{?\s*(?:print(?:\s+\$(\d+))?)?\s*;?\s*(?:exit)?\s*\}?\s*"
)
_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")
_BEHIND = re.compile(r"\(\?<=([^()\\]+)\)\.\*|([^()\\]+)\\K(?:\.\*|\\S\+)")  # of grep -oP


def hosts(text: str) -> list[str]:
    """The names in a list of nodes: `n[1-2,4],m`."""
    names: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*", text):
        match = _RANGE.fullmatch(part)
        if match is None:
            names.append(part)
            continue
        for numbers in match[2].split(","):
            low, _, high = numbers.partition("-")
            reach = range(int(low), int(high or low) + 1)[:10_000]
            names += [f"{match[1]}{at}{match[3]}" for at in reach]
    return names


def answer(
    allocation: Allocation, node: int, host: str, text: str, words: Sequence[str], unknown: str
) -> str:
    """What a command prints; `unknown` where that is not to be known.

    Args:
        node: the number of the node on which it runs, in its step.
        text: what it reads from a pipe.
    """
    name, rest = words[0].rpartition("/")[2], list(words[1:])
    printed = _of_machine(allocation, node, host, name, rest)
    if printed is None and name in ("xargs", "tee"):
        return text
    if printed is None and name in _FILTERS and (unknown not in text or name == "wc"):
        try:
            printed = _FILTERS[name](rest, text.splitlines())
        except (ValueError, IndexError):
            printed = None
    return f"{unknown}\n" if printed is None else "".join(f"{line}\n" for line in printed)


def _of_machine(
    allocation: Allocation, node: int, host: str, name: str, rest: list[str]
) -> list[str] | None:
    """The lines that a command prints about the machine, time, names; None where not known."""
    match name:
        case "scontrol" if rest[:1] == ["show"] and rest[1:2] and rest[1].startswith("hostname"):
            named = [word for word in rest[2:] if not word.startswith("-")]
            return hosts(named[0] if named else allocation.nodelist)
        case "hostname" if {"-i", "-I", "--ip-address", "--all-ip-addresses"} & {*rest}:
            return [f"10.0.0.{host[1:]}"] if host[1:].isdigit() else None
        case "hostname":
            return [host]
        case "nslookup" | "getent" | "host" | "dig":
            asked = rest[-1].split(".")[0] if rest else host
            if asked.removesuffix("i") not in hosts(allocation.nodelist):
                return None
            address = f"10.0.0.{re.sub(r'[^0-9]', '', asked)}"
            forms = {"getent": f"{address} {asked}", "dig": address, "host": f"{asked} has address "
                     f"{address}", "nslookup": f"Address: {address}"}  # fmt: skip
            return [forms[name]]
        case "nproc" if allocation.cpus:
            return [str(allocation.cpus)]
        case "nvidia-smi" if allocation.gpus:
            return [f"GPU {at}: card (UUID: {at})" for at in range(allocation.gpus)]
        case "date" if rest == ["+%s"]:
            return [str(int(time.time()) + 7 * node)]
        case "uuidgen" | "mktemp":
            return [str(uuid.uuid4())]
        case "seq" if 1 <= len(rest) <= 3 and all(re.fullmatch(r"-?\d{1,6}", n) for n in rest):
            first, step, last = {
                1: (1, 1, int(rest[-1])),
                2: (int(rest[0]), 1, int(rest[-1])),
                3: (int(rest[0]), int(rest[-2]), int(rest[-1])),
            }[len(rest)]
            reach = range(first, last + (1 if step > 0 else -1), step or 1)
            return [str(at) for at in reach[:1000]]
        case "basename" if rest:
            return [Path(rest[0]).name.removesuffix("".join(rest[1:2]))]
        case "dirname" if rest:
            return [str(Path(rest[0]).parent)]
        case "realpath" | "readlink" if rest:
            return [str(Path(rest[-1]).absolute())]
        case "which" if rest:
            return [f"/usr/bin/{rest[-1]}"]
        case "uname":
            return [host if rest == ["-n"] else "Linux"]
        case "whoami":
            return ["user"]
    return None


def _cat(words: list[str], lines: list[str]) -> list[str] | None:
    names = [word for word in words if not word.startswith("-")]
    texts = [_content(name) for name in names]
    return "".join(texts).splitlines() if names and all(texts) else None if names else lines


def _content(name: str) -> str:
    try:
        with open_regular(Path(name)) as file:
            return file.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""


def _count(words: list[str]) -> int:
    number = re.search(r"\d+", " ".join(words))
    return int(number[0]) if number else 10


def _cut(words: list[str], lines: list[str]) -> list[str] | None:
    """Of one field or a closed range of letters: `-d ' ' -f1`, `-d: -f 2`, `-c1-4`."""
    given: dict[str, str] = {}
    left = iter(words)
    for word in left:
        for long, short in (("--delimiter=", "-d"), ("--fields=", "-f"), ("--characters=", "-c")):
            if word.startswith(long):
                word = short + word.removeprefix(long)
        if word[:2] not in ("-d", "-f", "-c") or word[:2] in given:
            return None  # a file, or another option
        given[word[:2]] = word[2:] or next(left, "")
    by, field, letters = given.get("-d", "\t"), given.get("-f", ""), given.get("-c", "")
    if field.isdecimal() and int(field) and len(by) == 1 and not letters:
        cells = [line.split(by) for line in lines]
        return [row[0] if len(row) == 1 else "".join(row[int(field) - 1 :][:1]) for row in cells]
    closed = re.fullmatch(r"(\d+)(?:-(\d+))?", letters)
    if closed and int(closed[1]) and given.keys() == {"-c"}:
        return [line[int(closed[1]) - 1 : int(closed[2] or closed[1])] for line in lines]
    return None


def _tr(words: list[str], lines: list[str]) -> list[str] | None:
    sets = [word.encode().decode("unicode_escape") for word in words if not word.startswith("-")]
    flags, text = {word for word in words if word.startswith("-")}, "\n".join([*lines, ""])
    if flags == {"-d"} and sets:
        return "".join(letter for letter in text if letter not in sets[0]).splitlines()
    if len(sets) == 2 and flags <= {"-s"}:
        old, new = sets
        table = {ord(letter): new[min(at, len(new) - 1)] for at, letter in enumerate(old)}
        return text.translate(table).splitlines()
    return None


def _awk(words: list[str], lines: list[str]) -> list[str] | None:
    match = _AWK.fullmatch(words[-1])
    if match is None or not (match[1] or match[3]):
        return None
    by = re.search(r"-F\s*(\S)", " ".join(words))
    kept = lines[int(match[2]) - 1 :][:1] if match[2] else lines
    if not (column := int(match[3] or 0)):
        return kept
    return ["".join(line.split(by[1] if by else None)[column - 1 :][:1]) for line in kept]


def _sed(words: list[str], lines: list[str]) -> list[str] | None:
    match = re.fullmatch(r"(\d+)([pq])", words[-1])
    if match is None:
        return None
    return lines[int(match[1]) - 1 :][:1] if match[2] == "p" else lines[: int(match[1])]


def _grep(words: list[str], lines: list[str]) -> list[str] | None:
    pattern = next((word for word in words if not word.startswith("-")), "")
    if (behind := _BEHIND.fullmatch(pattern)) and {"-oP", "-Po"} & {*words}:
        start = behind[1] or behind[2]
        ends = [line.partition(start)[2] for line in lines if start in line]
        return [end if behind[1] else end.split()[0] for end in ends if end]
    if "-c" in words or not re.fullmatch(r"[\w ./=:-]*", pattern):
        return None
    return [line for line in lines if pattern in line]


# What filters make of lines, in the forms that batch files have; None for any other.
_FILTERS: dict[str, Callable[[list[str], list[str]], list[str] | None]] = {
    "cat": _cat, "cut": _cut, "tr": _tr, "awk": _awk, "gawk": _awk, "sed": _sed, "grep": _grep,
    "egrep": _grep,
    "head": lambda words, lines: lines[: _count(words)],
    "tail": lambda words, lines: lines[-_count(words) :],
    "wc": lambda words, lines: [str(len(lines))] if "-l" in words else None,
    "sort": lambda _, lines: sorted(lines),
    "uniq": lambda _, lines: list(dict.fromkeys(lines)),
}  # fmt: skip
