"""All checks, made at once, and shown in one order; nothing of them is left behind."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace

from ...base.errors import UserError
from ...base.files import user_path
from ...base.findings import Finding
from ...base.text import clean
from ...slurm.client import Client
from . import codes, commands, gather, gather_script
from .asking import Clock, Late, Question, is_asking
from .facts import Facts
from .gather import Check
from .gather_script import RankCheck

# Of two seconds in all: the rest is for starting Python, and for ending what is left.
LIMIT = 1.5
_FOR_THE_CHECKS = 0.1


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
    checks = gather.CHECKS
    if script is not None:
        checks += gather_script.checks(user_path(script, "SCRIPT"), args, ranks)
    mark = secrets.token_hex(8)
    clock = Clock(limit)
    # Slurm's commands are ended below, with all they have started, and not by the client's limit.
    client = Client(timeout=limit + 60, environment={**os.environ, commands.MARK: mark})
    facts = Facts(Clock(limit - _FOR_THE_CHECKS), client)
    try:
        asked = [(check, _asked(check, facts, clock)) for check in checks]
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
