"""`rankup doctor`: all questions, asked at once and shown in one order; no process is left."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ...base import findings
from ...base.errors import UserError
from ...base.files import user_path
from ...base.findings import Finding, Level
from ...base.processes import ended_as_an_exception
from ...base.text import clean
from ...sandbox.inside.spec import STATE
from ...sandbox.processes import Tree
from ...script.source import refuse_notebook
from ...slurm.client import Client
from ..question import Question, question, warning
from . import folders, machine, python, script
from .deadline import Deadline, start
from .facts import Facts

Asked: TypeAlias = Sequence[Question[Facts]]
# Of two seconds in all: the rest is for starting Python, and for ending what is left.
LIMIT = 1.5
_FOR_THE_ANSWERS = 0.1
_FOR_THE_END = 0.2
_PAUSE = 0.05
_AT_MOST = 2.0  # where a signal ends it early

QUESTIONS: Asked = (
    machine.machine,
    machine.configuration,
    machine.slurm,
    machine.partitions,
    machine.account,
    machine.internet,
    folders.space,
    folders.quotas,
    folders.mounts,
    folders.caches,
    python.python,
    python.torch,
    script.needs,
)
OF_A_SCRIPT: Asked = (script.imports, script.data)


@question("RK538", "no answer in time", "doctor")
def late(found: tuple[Sequence[str], float]) -> Iterator[Finding]:
    """All that has not answered within doctor's time (under two seconds in all): a file system, a
    command of Slurm or of the site. Doctor ends what it has started and says so, and
    does not wait. What hangs here usually slows down jobs as well.

    ```text
    WARN  doctor  no answer within 1.5 s: partitions, space [RK538]
          -> ask again; where it stays so, the controller or a file system is overloaded
    ```

    Ask again. If it stays so, run the command yourself (`sinfo`, `df FOLDER`)
    and tell the site's support.
    """
    places, seconds = found
    if places:
        yield warning(
            f"no answer within {seconds:g} s: {', '.join(places)}",
            "ask again; where it stays so, the controller or a file system is overloaded",
        )


@question("RK539", "a check failed", "doctor")
def failed(error: Exception) -> Iterator[Finding]:
    """A check of doctor's own that failed with an error nobody has thought of. The other checks are
    made all the same; this one says nothing.

    ```text
    WARN  torch  this check failed: KeyError: 'x' [RK539]
          -> the other checks are not touched by it; please report it as a bug of rankup
    ```

    Report it, with the line. Nothing in your project has to be wrong.
    """
    todo = "the other checks are not touched by it; please report it as a bug of rankup"
    yield warning(f"this check failed: {type(error).__name__}: {_one_line(str(error))}", todo)


def show(script: str | None, args: tuple[str, ...], *, as_json: bool) -> int:
    """Print every finding, as text or JSON; 1 where one is an error, else 0.

    Raises:
        UserError: SCRIPT is no usable path.
    """
    began = time.monotonic()
    with ended_as_an_exception():  # so that also then no process is left
        found = examine(script, args)
    if as_json:
        print(findings.as_json(found))
    else:
        findings.show(found, sys.stdout)
        seconds = f"{time.monotonic() - began:.1f} s"
        print(f"{_count(found, 'error')}, {_count(found, 'warning')}, {seconds}")
    return findings.exit_code(found)


def examine(
    script: str | None,
    args: tuple[str, ...],
    limit: float = LIMIT,
    *,
    questions: Asked = QUESTIONS,
) -> list[Finding]:
    """Return every finding on this machine and, with one, on a script started with `args`.

    What has not answered within `limit` seconds is a finding itself, and so is a question whose
    function fails.

    Raises:
        UserError: SCRIPT is no usable path.
    """
    path = None if script is None else user_path(script, "SCRIPT")
    if path is not None:
        refuse_notebook(path)
    mark = secrets.token_hex(8)
    # Slurm's commands are ended below, with all they have started, and not by the client's limit.
    environment = {**os.environ, STATE: mark}
    client = Client(timeout=limit + 60, environment=environment)
    deadline = Deadline(limit)
    facts = Facts(Deadline(limit - _FOR_THE_ANSWERS), client, path, args)
    asked = [(one, one.place) for one in questions]
    if path is not None:
        asked += [(one, path.name or str(path)) for one in OF_A_SCRIPT]
    futures: list[Future[list[Finding]]] = []
    answers: list[list[Finding] | None] = []
    done = False
    try:
        for one, place in asked:
            futures.append(start(partial(_findings, one, facts, place)))
        answers.extend(deadline.wait(future, None) for future in futures)
        done = all(future.done() for future in (*futures, *facts.futures.values()))
    finally:
        if not done:
            environment["PATH"] = os.devnull  # a thread that goes on finds no next command
            in_time = len(answers) == len(asked)
            _end(mark, (*futures, *facts.futures.values()), _FOR_THE_END if in_time else _AT_MOST)
    found = [finding for answer in answers for finding in answer or ()]
    places = [place for (_, place), answer in zip(asked, answers, strict=True) if answer is None]
    found += late.findings((list(dict.fromkeys(places)), limit))
    return [
        replace(one, place=clean(one.place), message=clean(one.message), todo=clean(one.todo))
        for one in found
    ]


def _end(mark: str, futures: Sequence[Future[Any]], seconds: float) -> None:
    """Kill the commands; those as well that a thread is just about to start."""
    deadline = Deadline(seconds)
    while True:
        Tree(mark).kill(deadline.left())
        running = [one for one in futures if not one.done()]
        if not running or not deadline.left():
            return
        wait(running, min(deadline.left(), _PAUSE))


def _findings(one: Question[Facts], facts: Facts, place: str) -> list[Finding]:
    """The findings of a question, or the one that says why there are none."""
    try:
        return one.findings(facts, place)
    except (UserError, OSError) as error:
        return [Finding(one.code, "warning", place, _one_line(str(error)))]
    except Exception as error:
        return failed.findings(error, place)


def _count(found: list[Finding], level: Level) -> str:
    number = sum(one.level == level for one in found)
    return f"{number} {level}{'' if number == 1 else 's'}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
