"""The seven checks: pure functions of journals."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ..protocol import ORIGINAL, Seen
from ..verdict import CHECKS, Result, differs, merged
from . import output, samples, training

_BROKEN = (
    "the process that starts the ranks has ended, in this run or the one before: killed by one of "
    "the ranks, or for its memory"
)


def results(runs: Mapping[str, Seen], planned: Mapping[str, int]) -> list[Result]:
    """All that the runs show.

    Args:
        runs: by their names; the originals that did not come to their end are left out.
        planned: names of the ports' runs and their ranks.
    """
    known = _alike(runs)
    found: list[Result] = []
    for name, world in planned.items():
        port = runs.get(name)
        if name == "kill" or name.endswith("-kill"):
            found.append(killed(port))
        elif port is not None:
            run = port.outcome.run
            original = runs.get(run.against if run is not None else ORIGINAL)
            if original is not None:
                found += _of_port(original, port, known)
        elif name != "alike" or _alike_original(runs) is not None:
            found += _failed(world, _BROKEN)
    return merged(found)


def _alike_original(runs: Mapping[str, Seen]) -> Seen | None:
    original = runs.get("original-alike")
    return original if original is not None and not original.failed else None


def _alike(runs: Mapping[str, Seen]) -> output.Alike | None:
    original, port = _alike_original(runs), runs.get("alike")
    if original is None or port is None or port.failed:
        return None
    return output.alike(runs[ORIGINAL], original, port)


def _of_port(original: Seen, port: Seen, known: output.Alike | None) -> list[Result]:
    if port.failed:
        how = (
            "with random numbers and a clock of each rank's own, as in life, " if port.free else ""
        )
        return _failed(port.world, how + failure(port))
    both = [
        training.parameters(port),
        samples.samples(original, port),
        output.evaluation(original, port, known),
        output.output(original, port, known),
    ]
    if port.free:
        return [training.same_number(port), *both]
    return [training.losses(original, port), *both, output.saved(original, port)]


def _failed(world: int, why: str) -> list[Result]:
    """The results of a run that broke off: nothing of it is worth a comparison."""
    first, *rest = [name for name in CHECKS if name != "killed"]
    return [
        differs(first, world, "failed", why),
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


def killed(run: Seen | None) -> Result:
    """Check 7: rank 1 is killed in the middle, and rank 0 must not go on as if nothing were."""
    if run is None:
        return Result("killed", 2, "not seen", "failed")
    if not run.ranks[1].of("killed"):
        return Result("killed", 2, "not seen", "ended before")
    rest = run.outcome.ranks[0]
    if rest.finished or rest.code == 0:
        return differs(
            "killed",
            2,
            "rank 0 goes on",
            "rank 1 was killed after an optimizer step, and rank 0 trained on to its end, alone, "
            "and ended with code 0: nothing in its training waits for the other",
        )
    if rest.code is None or run.outcome.why == "time":
        return differs(
            "killed",
            2,
            "rank 0 hangs",
            f"rank 1 was killed, and rank 0 still ran after {run.outcome.patience:.0f} s, also "
            "after SIGTERM: it catches what should end it",
        )
    return Result("killed", 2, "proved", f"in {run.outcome.patience:.1f} s")
