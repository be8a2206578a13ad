"""`rankup doctor`: all checks, made at once, and shown in one order; no process is left behind."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import replace

from ...base import findings
from ...base.errors import UserError
from ...base.files import user_path
from ...base.findings import Finding, Level
from ...base.text import clean
from ...slurm.client import Client
from . import checks, codes, commands
from .asking import Clock, Late, Question, is_asking
from .checks import Check, RankCheck
from .facts import Facts

# Of two seconds in all: the rest is for starting Python, and for ending what is left.
LIMIT = 1.5
_FOR_THE_CHECKS = 0.1


def show(
    script: str | None, args: tuple[str, ...], *, as_json: bool, ranks: RankCheck | None = None
) -> int:
    """Print every finding, as text or JSON; 1 where one is an error, else 0.

    Args:
        ranks: what `rankup check` finds in a script.

    Raises:
        UserError: SCRIPT is no usable path.
    """
    start = time.monotonic()
    found = examine(script, args, ranks=ranks)
    if as_json:
        print(findings.as_json(found))
    else:
        findings.show(found, sys.stdout)
        print(f"{_count(found, 'error')}, {_count(found, 'warning')}, {_seconds(start)}")
    return findings.exit_code(found)


def _count(found: list[Finding], level: Level) -> str:
    number = sum(one.level == level for one in found)
    return f"{number} {level}{'' if number == 1 else 's'}"


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:.1f} s"


def examine(
    script: str | None,
    args: tuple[str, ...],
    limit: float = LIMIT,
    *,
    ranks: RankCheck | None = None,
) -> list[Finding]:
    """Every finding on this machine and, with one, on a script that is started with `args`.

    What has not answered within `limit` seconds is a finding itself, and so is a check that fails.

    Args:
        ranks: what `rankup check` finds in a script, which is a floor above.

    Raises:
        UserError: SCRIPT is no usable path.
    """
    chosen = checks.CHECKS
    if script is not None:
        chosen += checks.of_script(user_path(script, "SCRIPT"), args, ranks)
    mark = secrets.token_hex(8)
    clock = Clock(limit)
    # Slurm's commands are ended below, with all they have started, and not by the client's limit.
    client = Client(timeout=limit + 60, environment={**os.environ, commands.MARK: mark})
    facts = Facts(Clock(limit - _FOR_THE_CHECKS), client)
    try:
        asked = [(check, _asked(check, facts, clock)) for check in chosen]
        late: set[str] = set()
        found = [one for check, answer in asked for one in _findings(check, answer, clock, late)]
    finally:
        if is_asking():
            commands.end_all(mark)
    return [
        replace(one, place=_shown(one.place), message=_shown(one.message), todo=_shown(one.todo))
        for one in found
    ]


def _asked(check: Check, facts: Facts, clock: Clock) -> Question[list[Finding]]:
    return Question(check.place, clock, lambda: check.findings(facts))


def _findings(
    check: Check, question: Question[list[Finding]], clock: Clock, late: set[str]
) -> list[Finding]:
    """The findings of a check, or the one that says why there are none; each delay once."""
    try:
        return question.answer()
    except Late as error:
        if error.what in late:
            return []
        late.add(error.what)
        message = f"{error.what} did not answer within {clock.limit:g} s"
        todo = "ask again; where it stays so, the controller or a file system is overloaded"
        return [Finding(codes.LATE, "warning", check.place, message, todo)]
    except (UserError, OSError) as error:
        return [Finding(check.code, "warning", check.place, _one_line(str(error)))]
    except Exception as error:
        message = f"this check failed: {type(error).__name__}: {error}"
        todo = "the other checks are not touched by it; please report it as a bug of rankup"
        return [Finding(codes.FAILED, "warning", check.place, _one_line(message), todo)]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shown(text: str) -> str:
    """Safe to be printed: names of files may hold bytes of any kind, also such as are no text."""
    return clean(text.encode(errors="replace").decode())
