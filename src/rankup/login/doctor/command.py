"""`rankup doctor`: what this machine is, and what would keep a job from running."""

from __future__ import annotations

import sys
import time

from ...base import findings
from .examine import examine
from .gather_script import RankCheck


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


def _count(found: list[findings.Finding], level: findings.Level) -> str:
    number = sum(one.level == level for one in found)
    return f"{number} {level}{'' if number == 1 else 's'}"


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:.1f} s"
