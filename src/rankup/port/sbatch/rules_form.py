"""Rules about the form of a batch script: what sbatch reads, and what it passes over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import nearest
from ...base.findings import Finding
from . import codes, options
from .seen import Seen

# Without these a job is another one than was meant, or is refused.
_PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w ,.-]*>|\b(?:TODO|FIXME|CHANGE[_-]?ME|PLACEHOLDER|YOUR[_-]\w+)\b|^X{3,}$"
)


def conflicts(seen: Seen) -> Iterator[Finding]:
    """RK150."""
    for line in seen.script.conflicts[:1]:
        yield seen.find(
            codes.CONFLICT,
            "error",
            line,
            f"git's conflict markers ({len(seen.script.conflicts)} lines): bash stops at them",
            "keep one of the two versions and remove the lines <<<<<<<, ======= and >>>>>>>",
        )


def bash(seen: Seen) -> Iterator[Finding]:
    """RK169."""
    if seen.script.unreadable:
        line, why = seen.script.unreadable
        yield seen.find(codes.NO_BASH, "error", line, why, "`bash -n` on the file says where")


def script(seen: Seen) -> Iterator[Finding]:
    """RK153."""
    lines = seen.script.lines
    if not lines[0].startswith("#!"):
        found = (
            f"it begins with {lines[0][:40]!r}" if lines[0].strip() else "its first line is empty"
        )
        yield seen.find(
            codes.NOT_A_SCRIPT,
            "error",
            1,
            f"{found}; sbatch refuses a script whose first line is not #!",
            "let the first line be #!/bin/bash",
        )
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            yield seen.find(
                codes.NOT_A_SCRIPT,
                "error",
                number,
                "lines end as on Windows (CR LF); sbatch refuses that",
                f"sed -i 's/\\r$//' {seen.script.path.name}",
            )
            return


def not_read(seen: Seen) -> Iterator[Finding]:
    """RK151."""
    for one in seen.script.directives:
        exact = one.text.startswith("#SBATCH") and one.marker == "#SBATCH"
        missing = [o for o in one.options if seen.script.asked(o.name) is None]
        known = [o for o in missing if not options.unknown(o)]
        if exact or not known:  # one that is said elsewhere was switched off on purpose
            continue
        names = ", ".join(f"--{o.name}" for o in known)
        yield seen.find(
            codes.NOT_READ,
            "warning",
            one.line,
            f"`{one.marker}` is a comment to sbatch, so {names} is not asked for",
            "write #SBATCH at the very beginning of the line, or remove it",
        )


def too_late(seen: Seen) -> Iterator[Finding]:
    """RK152."""
    first = seen.script.first
    for one in seen.script.directives:
        if one.marker == "#SBATCH" and not one.read and first is not None and one.line > first:
            begins = seen.script.lines[first - 1].strip()[:50]
            yield seen.find(
                codes.TOO_LATE,
                "error",
                one.line,
                f"it stands behind the first command (line {first}: {begins}), where sbatch reads "
                "no more directives",
                f"move it above line {first}",
            )


def bad_option(seen: Seen) -> Iterator[Finding]:
    """RK154."""
    for one in seen.script.directives:
        if not one.read:
            continue
        if one.fault:
            yield seen.find(
                codes.BAD_OPTION,
                *("error", one.line, f"its words cannot be told apart: {one.fault}"),
                "close the quote; spaces in a value need quotes",
            )
        if one.rest and one.rest[0] not in ("hetjob", "packjob"):
            yield seen.find(
                codes.BAD_OPTION,
                *("error", one.line, f"{one.rest[0]!r} is no option; sbatch refuses the script"),
                "an option begins with -- and has its value behind a =; comments begin with #",
            )
        for option in one.options:
            dash = "-" if len(option.name) == 1 else "--"
            if options.unknown(option):
                yield seen.find(
                    codes.BAD_OPTION,
                    *("error", one.line, f"sbatch has no option {dash}{option.name}"),
                    nearest(option.name, options.known())
                    if len(option.name) > 2
                    else "see man sbatch",
                )
            elif "$" in (option.value or ""):
                yield seen.find(
                    codes.BAD_OPTION,
                    *("warning", one.line),
                    f"--{option.name}={option.value}: variables are not expanded in a directive",
                    "write the value, or give it to sbatch on the command line",
                )


def no_limit(seen: Seen) -> Iterator[Finding]:
    """RK155."""
    read = [one for one in seen.script.directives if one.read]
    if read and seen.launches and seen.script.asked("time") is None:
        yield seen.find(
            codes.NO_LIMIT,
            "warning",
            read[-1].line,
            "no time limit: the partition's default holds, minutes or the longest there is",
            "#SBATCH --time=02:00:00, a little more than the run needs",
        )


def placeholder(seen: Seen) -> Iterator[Finding]:
    """RK167."""
    for one in seen.script.directives:
        for option in one.options if one.read else ():
            if option.value and _PLACEHOLDER.search(option.value):
                yield seen.find(
                    codes.PLACEHOLDER,
                    *("error", one.line, f"--{option.name}={option.value} is a placeholder"),
                    f"put your own --{option.name} there",
                )
    for launch in seen.launches:
        for word in launch.words:
            if _PLACEHOLDER.search(word) and ("/" in word or word == launch.script or "_" in word):
                yield seen.find(
                    codes.PLACEHOLDER,
                    *("error", launch.line, f"{word} is a placeholder"),
                    "put your own value there",
                )


def log(seen: Seen) -> Iterator[Finding]:
    """RK166."""
    folders = _starts(seen)
    for one in seen.script.directives:
        for option in one.options if one.read else ():
            if option.name not in ("output", "error") or not option.value:
                continue
            folder = Path(option.value).parent
            if "%" in str(folder) or "$" in str(folder) or not judged(folder):
                continue
            if not any((start / folder).is_dir() for start in folders):
                yield seen.find(
                    codes.NO_LOG,
                    "error",
                    one.line,
                    f"the folder {folder} is not there; Slurm does not make it, and the job dies "
                    "without a log",
                    f"mkdir -p {folder}",
                )


def _starts(seen: Seen) -> list[Path]:
    """The folders that the job may start in."""
    chdir = seen.script.asked("chdir", "workdir")
    here = [seen.script.path.resolve().parent, Path.cwd()]
    return [start / chdir for start in here] if chdir and "$" not in chdir else here


def judged(path: Path) -> bool:
    """Whether this machine can say if a path is there: not of another machine's file system."""
    if not path.is_absolute():
        return True
    return len(path.parts) > 1 and Path(*path.parts[:2]).exists()
