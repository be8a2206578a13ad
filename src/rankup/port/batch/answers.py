"""What commands would print on the nodes of a made-up allocation."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from ...base.files import open_regular
from .allocation import Allocation

_AWK = re.compile(
    r"\s*(NR\s*==\s*(\d+))?\s*\{?\s*(?:print(?:\s+\$(\d+))?)?\s*;?\s*(?:exit)?\s*\}?\s*"
)
_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")


def hosts(text: str) -> list[str]:
    """The names in a list of nodes: `n[1-2,4],m`."""
    found: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*", text):
        match = _RANGE.fullmatch(part)
        if match is None:
            found.append(part)
            continue
        for one in match[2].split(","):
            low, _, high = one.partition("-")
            found += [
                f"{match[1]}{at}{match[3]}" for at in range(int(low), int(high or low) + 1)[:10_000]
            ]
    return found


def answer(
    allocation: Allocation, node: int, host: str, text: str, words: Sequence[str], unknown: str
) -> str:
    """What a command prints; `unknown` where that is not to be known.

    Args:
        node: the number of the node on which it runs, in its step.
        text: what it reads from a pipe.
    """
    name, *rest = words
    name = name.rpartition("/")[2]
    lines = text.splitlines()
    unsure = f"{unknown}\n"
    match name:
        case "scontrol":
            named = [one for one in rest[2:] if not one.startswith("-")]
            if rest[:1] == ["show"] and rest[1:2] and rest[1].startswith("hostname"):
                listed = named[0] if named else allocation.nodelist
                return "".join(f"{one}\n" for one in hosts(listed))
            return unsure
        case "hostname":
            if any(one in ("-i", "-I", "--ip-address", "--all-ip-addresses") for one in rest):
                return f"10.0.0.{host[1:]}\n" if host[1:].isdigit() else unsure
            return f"{host}\n"
        case "nslookup" | "getent" | "host" | "dig":
            asked = rest[-1].split(".")[0] if rest else host
            number = re.sub(r"\D", "", asked)
            known = asked.removesuffix("i") in hosts(allocation.nodelist)
            return f"Address: 10.0.0.{number}\n10.0.0.{number} {asked}\n" if known else unsure
        case "nproc":
            return f"{allocation.cpus or unknown}\n"
        case "nvidia-smi":
            if not allocation.gpus:
                return unsure
            return "".join(f"GPU {at}: card (UUID: {at})\n" for at in range(allocation.gpus))
        case "date":
            return f"{int(time.time()) + 7 * node}\n" if rest == ["+%s"] else f"{unknown}\n"
        case "uuidgen" | "mktemp":
            return f"{uuid.uuid4()}\n"
        case "seq":
            numbers = [int(one) for one in rest if re.fullmatch(r"-?\d{1,6}", one)]
            if len(numbers) != len(rest) or not 1 <= len(rest) <= 3:
                return unsure
            first, step, last = (
                (1, 1, *numbers) if len(numbers) == 1
                else (numbers[0], 1, numbers[1]) if len(numbers) == 2 else numbers
            )  # fmt: skip
            reach = range(first, last + (1 if step > 0 else -1), step or 1)
            return "".join(f"{one}\n" for one in reach[:1000])
        case "basename" | "dirname" if rest:
            path = Path(rest[0])
            if name == "dirname":
                return f"{path.parent}\n"
            return f"{path.name.removesuffix(rest[1]) if rest[1:] else path.name}\n"
        case "realpath" | "readlink" if rest:
            return f"{Path(rest[-1]).absolute()}\n"
        case "which" if rest:
            return f"/usr/bin/{rest[-1]}\n"
        case "uname":
            return f"{host if rest == ['-n'] else 'Linux'}\n"
        case "whoami":
            return "user\n"
        case "xargs" | "tee":
            return text
    return _filtered(name, rest, lines, unsure, unknown)


def _filtered(name: str, rest: list[str], lines: list[str], unsure: str, unknown: str) -> str:
    """What a filter makes of lines, in the forms that batch files have."""
    options = [one for one in rest if one.startswith("-") and one != "-"]
    words = [one for one in rest if not one.startswith("-")]
    if any(unknown in line for line in lines) and name not in ("wc",):
        return unsure
    match name:
        case "cat":
            if not words:
                return "".join(f"{line}\n" for line in lines)
            return "".join(_content(one) or unsure for one in words)
        case "head" | "tail":
            number = re.search(r"\d+", " ".join(rest))
            count = int(number[0]) if number else 10
            kept = lines[:count] if name == "head" else lines[-count:]
            return "".join(f"{line}\n" for line in kept)
        case "cut":
            joined = " ".join(rest)
            by = re.search(r"(?:-d|--delimiter=)\s*(.)", joined)
            field = re.search(r"(?:-f|--fields=)\s*(\d+)", joined)
            letters = re.search(r"-c\s*(\d*)-?(\d*)", joined)
            if field:
                split = by[1] if by else "\t"
                parts = [line.split(split) for line in lines]
                at = int(field[1]) - 1
                return "".join(
                    f"{one[at] if at < len(one) else ''}\n" if len(one) > 1 else f"{one[0]}\n"
                    for one in parts
                )
            if letters:
                first, last = int(letters[1] or 1) - 1, int(letters[2] or letters[1] or 1)
                return "".join(f"{line[first:last]}\n" for line in lines)
        case "tr":
            if options == ["-d"] and words:
                dropped = words[0].encode().decode("unicode_escape")
                return "".join(one for one in "\n".join([*lines, ""]) if one not in dropped)
            if len(words) == 2 and not set(options) - {"-s"}:
                old, new = (one.encode().decode("unicode_escape") for one in words)
                table = {ord(a): new[min(at, len(new) - 1)] for at, a in enumerate(old)}
                return "\n".join([*lines, ""]).translate(table)
        case "wc":
            if "-l" in options:
                return f"{len(lines)}\n"
        case "sort" | "uniq":
            kept = sorted(lines) if name == "sort" else list(dict.fromkeys(lines))
            return "".join(f"{line}\n" for line in kept)
        case "awk" | "gawk":
            program = words[-1] if words else ""
            whole = _AWK.fullmatch(program)
            if whole and (whole[1] or whole[3]):
                by = re.search(r"-F\s*(\S)", " ".join(rest))
                kept = lines[int(whole[2]) - 1 :][:1] if whole[2] else lines
                at = int(whole[3] or 0)
                cells = [line.split(by[1] if by else None) for line in kept]
                return "".join(
                    f"{line if not at else (cell[at - 1] if at <= len(cell) else '')}\n"
                    for line, cell in zip(kept, cells, strict=True)
                )
        case "sed":
            program = words[-1] if words else ""
            if number := re.fullmatch(r"(\d+)p", program):
                at = int(number[1]) - 1
                return f"{lines[at]}\n" if at < len(lines) else ""
            if number := re.fullmatch(r"(\d+)q", program):
                return "".join(f"{line}\n" for line in lines[: int(number[1])])
        case "grep" | "egrep":
            plain = words[0] if words else ""
            behind = re.fullmatch(r"\(\?<=([^()\\]+)\)\.\*|([^()\\]+)\\K(?:\.\*|\\S\+)", plain)
            if behind and {"-oP", "-Po"} & {*options}:
                start = behind[1] or behind[2]
                ends = [line.partition(start)[2] for line in lines if start in line]
                return "".join(f"{one if behind[1] else one.split()[0]}\n" for one in ends if one)
            if "-c" in options or not re.fullmatch(r"[\w ./=:-]*", plain):
                return unsure
            return "".join(f"{line}\n" for line in lines if plain in line)
    return unsure


def _content(name: str) -> str:
    try:
        with open_regular(Path(name)) as file:
            return file.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""
