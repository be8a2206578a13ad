"""What a worker finds in its environment. No torch here."""

from __future__ import annotations

import math
import os

from ....base.errors import UserError

# A worker's number, how many there are, and host:port of the store.
WORKER, WORKERS, STORE = "RANKUP_WORKER", "RANKUP_WORKERS", "RANKUP_STORE"
_PATIENCE = "RANKUP_PATIENCE"
_SECONDS = 30.0


def patience() -> float:
    """Seconds without a sign of life after which the others go on without a worker.

    Raises:
        UserError: the environment has something else.
    """
    given = os.environ.get(_PATIENCE, str(_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"{_PATIENCE}={given!r} is no number of seconds above 0; set one, or none")
    return seconds
