"""The job's exit code becomes that of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..batch.shell import Command
from ..rewrite.edits import Edits
from .script import BatchScript

_STATUS = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")


def keep_status(script: BatchScript, edits: Edits) -> Iterator[str]:
    """Let a run that failed end as a failed job, where commands follow it or a pipe hides it."""
    if not script.launches or _switched_on(script, "e", "errexit"):
        return
    command = (script.training or script.launches)[-1].command
    if command.depth or command.function or command.background:
        return
    later = [one for one in script.commands if one.start >= command.until and not one.function]
    if _kept(later):
        return
    if command.piped and not _switched_on(script, "", "pipefail"):
        yield _pipefail(script, command, edits)
    if later and not command.tested and (said := _keep_status(script, command, edits)):
        yield said


def _pipefail(script: BatchScript, command: Command, edits: Edits) -> str:
    text = "set -o pipefail"
    edits.lines_before(script.starts[command.first - 1], f"{text} # a failed run is a failed job")
    return f"{text}, so that a failed run is a failed job"


def _keep_status(script: BatchScript, command: Command, edits: Edits) -> str:
    """Let the run's exit code be the job's, where that can be done by two lines."""
    shares = [
        one for one in script.commands if one.first == command.last and one.until != command.until
    ]
    if script.commands[-1].name() == "exit" or shares:
        return f"line {command.line}: the job's exit code is not the run's (RK160)"
    end = script.starts[command.last - 1] + len(script.lines[command.last - 1])
    edits.lines_after(end, "", "rankup_status=$? # a failed run is a failed job")
    status = "$rankup_status"
    if script.launches[-1].command.start > command.start:  # which may fail as well
        status = "$((rankup_status ? rankup_status : $?))"
    edits.lines_after(len(script.text.rstrip()), "", f"exit {status}")
    return ""


def _kept(later: Sequence[Command]) -> bool:
    """Return True where a status is read, and the script ends with one."""
    text = " ".join(word.text for one in later for word in one.words)
    ends = [one for one in later if one.name() in ("exit", "end_attempt")]
    return bool(_STATUS.search(text)) and bool(ends) and len(ends[-1].words) > 1


def _switched_on(script: BatchScript, letter: str, name: str) -> bool:
    """Return True where `set`, or the first line, switches an option on."""
    called = [one.values for one in script.commands if one.name() == "set" and not one.function]
    given = [word for words in (script.lines[0].split(), *called) for word in words[1:]]
    short = re.compile(rf"-[a-zA-Z]*{letter}[a-zA-Z]*")
    return name in given or bool(letter and any(map(short.fullmatch, given)))
