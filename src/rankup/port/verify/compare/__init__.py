"""The six checks: pure functions of journals."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..protocol import ORIGINAL, Run, Seen
from ..verdict import CHECKS, Result, differs, merged
from . import output, samples, training
from .output import Known
from .said import NOTHING, Said

_BROKEN = (
    "the process that starts the ranks has ended, in this run or the one before: killed by one of "
    "the ranks, or for its memory"
)


def results(
    runs: Mapping[str, Seen], planned: Iterable[Run], said: Said = NOTHING, *, cut: bool = False
) -> list[Result]:
    """Return all that the runs show.

    Args:
        runs: by their names; the originals that did not come to their end are left out.
        planned: those of the ports.
        said: where port says that a number is of rank 0's part.
        cut: there was no time for all of them: those that are missing are no failures.
    """
    halves, known = runs.get("original-alike"), Known(said)
    if halves is not None and not halves.failed:
        port = runs.get("alike")
        if port is not None and not port.failed:
            known = output.alike(said, runs[ORIGINAL], halves, port)
    else:
        halves = None
    found = []
    for run in planned:
        port, checks = runs.get(run.name), {}
        if port is not None:
            original = runs.get(port.run.against)
            if original is not None:
                checks = _of_port(original, port, known)
        elif not cut and (not run.alike or halves is not None):
            checks = _failed(_BROKEN)
        found += [replace(one, check=check, world=run.world) for check, one in checks.items()]
    return merged(found)


def _of_port(original: Seen, port: Seen, known: Known) -> dict[str, Result]:
    if port.failed:
        how = "with random numbers and a clock of each rank's own, as in life, "
        return _failed((how if port.run.free else "") + failure(port))
    found = {
        "losses": training.same_number(port) if port.run.free else training.losses(original, port),
        "parameters": training.parameters(port),
        "samples": samples.samples(original, port),
        "evaluation": output.evaluation(original, port, known),
        "output": output.output(original, port, known),
    }
    return found if port.run.free else {**found, "saved": output.saved(original, port, known)}


def _failed(why: str) -> dict[str, Result]:
    """Return the results of a run that broke off: nothing of it is worth a comparison."""
    first, *rest = CHECKS
    return {first: differs("failed", why), **dict.fromkeys(rest, Result("not seen", "failed"))}


def failure(run: Seen) -> str:
    """Return why a run broke off: the rank that failed first, in its own words."""
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
        last = end.stderr[-1000:].strip()
        if end.code is not None and end.code < 0:
            return f"{name.format(rank)} was ended by signal {-end.code}\n{last}"
        if end.code:
            return f"{name.format(rank)} ended with code {end.code}\n{last}"
    waiting = [str(rank) for rank, end in enumerate(run.outcome.ranks) if not end.finished]
    return (
        f"rank {', '.join(waiting)} of {max(1, run.world)} had not ended after "
        f"{run.outcome.seconds:.0f} s: it waits for another rank, or there is more to do than "
        "this limit allows (--time)"
    )
