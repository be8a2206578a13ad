"""The seven checks: pure functions of journals."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ..journals import Seen
from ..verdict import CHECKS, Result, differs
from . import evaluation, killed, losses, output, parameters, samples, saved

_BROKEN = (
    "the process that starts the ranks has ended, in this run or the one before: killed by one of "
    "the ranks, or for its memory"
)


def results(original: Seen, ports: Mapping[int, Seen | None], kill: Seen | None) -> list[Result]:
    """All that the runs show, port by port.

    Args:
        ports: by their ranks; None: there was no such run any more.
    """
    found: list[Result] = []
    for world, port in ports.items():
        found += _of_port(original, port) if port is not None else _failed(world, _BROKEN)
    found.append(killed.compare(kill))
    return found


def _of_port(original: Seen, port: Seen) -> list[Result]:
    if port.failed:
        return _failed(port.world, failure(port))
    return [
        losses.compare(original, port),
        parameters.compare(port),
        samples.compare(original, port),
        evaluation.compare(original, port),
        output.compare(original, port),
        saved.compare(original, port),
    ]


def _failed(world: int, why: str) -> list[Result]:
    """What a run that broke off has shown is not worth a comparison."""
    first, *rest = [name for name in CHECKS if name != "killed"]
    return [
        differs(first, world, why, "failed"),
        *(Result(name, world, "not seen", "failed") for name in rest),
    ]


def failure(run: Seen) -> str:
    """Why a run did not come to its end: the rank that failed first, in its own words."""
    errors = [
        (event["time"], rank, event)
        for rank, journal in enumerate(run.ranks)
        for event in journal.of("end")
        if event.get("error")
    ]
    name = f"rank {{}} of {run.world}" if run.world else "the script"
    if errors:
        _, rank, event = min(errors, key=lambda one: one[0])
        return f"{name.format(rank)} failed:\n{event['error'].rstrip()}"
    # What was asked to end, after another had failed, comes after that one.
    ends = sorted(enumerate(run.outcome.ranks), key=lambda one: one[1].code == -signal.SIGTERM)
    for rank, end in ends:
        if end.code is not None and end.code < 0:
            return (
                f"{name.format(rank)} was ended by signal {-end.code}\n{end.said[-1000:].strip()}"
            )
        if end.code:
            return f"{name.format(rank)} ended with code {end.code}\n{end.said[-1000:].strip()}"
    waiting = [str(rank) for rank, end in enumerate(run.outcome.ranks) if not end.finished]
    return (
        f"rank {', '.join(waiting)} of {max(1, run.world)} had not ended after "
        f"{run.outcome.seconds:.0f} s: it waits for another rank, or there is more to do than "
        "this limit allows (--time)"
    )
