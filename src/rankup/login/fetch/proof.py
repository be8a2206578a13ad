"""The same start once more without a network: does it come as far?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..record import Proof
from . import alone
from .attempt import Attempt, Start, run
from .missing import First, missing, wanted
from .progress import say
from .supervise import Interrupt


@dataclass(frozen=True)
class Proved:
    """What came of it.

    Attributes:
        proof: as in `Record`.
        lines: why it failed; or, where it came as far, what it asked the network for in vain.
    """

    proof: Proof
    lines: tuple[str, ...]
    attempt: Attempt

    @property
    def note(self) -> str:
        """The lines as one."""
        return "; ".join(self.lines)


def prove(
    start: Start, offline: Mapping[str, str], interrupt: Interrupt, first: Attempt | None = None
) -> Proved:
    """Start the script where there is no network, in a namespace of its own if that is allowed.

    Args:
        offline: variables that the job will have, too.
        first: the start with a network, if there was one in this command.
    """
    why = alone.refusal()
    if why:
        say(f"{why}; so Python refuses connections, and other programs are not held back")
    attempt = run(replace(start, network="blocked" if why else "none", offline=offline), interrupt)
    if attempt.outcome.reached:
        asked = wanted(attempt.events)
        survived = tuple(f"it does without {one}" for one in asked[-5:])
        return Proved("blocked" if why else "namespace", survived, attempt)
    if attempt.ended.why == "interrupt":
        return Proved("none", attempt.outcome.lines, attempt)
    before = None
    if first is not None:
        before = First(first.events, bool(first.outcome.reached), first.left.files)
    lines = missing(attempt.events, attempt.ended, start.limits, before, Path.cwd())
    return Proved("failed", tuple(lines), attempt)
