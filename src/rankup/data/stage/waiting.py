"""One process of a node copies, the others wait for it, and learn how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ...base import lock
from ...base.amounts import size
from ...base.errors import RunFailed, UserError
from ...base.files import write_atomic
from ..errors import BadContainer
from . import room

Say = Callable[[str], None]

# Seconds without a byte more after which those who wait for a copy give up: the scan of data of
# others may take minutes before the first one.
PATIENCE = 600.0
_POLL = 0.1
_LOOK_EVERY = 2.0
_SAY_EVERY = 10.0
QUICK = lock.Pace(poll=_POLL)


@contextmanager
def alone(
    entry: Path, say: Say, patience: float = PATIENCE, say_every: float = _SAY_EVERY
) -> Iterator[tuple[lock.Held, bool]]:
    """Hold the lock of a copy, and say whether it had to be waited for.

    Args:
        entry: its folder, or the link to it.
        patience: seconds without a byte more after which it is given up.

    Raises:
        RunFailed: who holds it comes no further.
        OSError: the folder cannot be written to.
    """
    waited = False
    there, moved = -1, time.monotonic()
    looked = said = moved
    with ExitStack() as stack:
        while True:
            try:
                # Waiting is done here, where it is seen how far the other one is.
                held = stack.enter_context(lock.held(entry, say, doing="staging", wait=False))
                break
            except lock.Taken as error:
                taken = str(error).partition(";")[0]
            waited = True
            now = time.monotonic()
            if now - looked > min(_LOOK_EVERY, patience / 4):
                looked = now
                found, _ = room.copies(entry.resolve())
                if found != there:
                    there, moved = found, now
                elif now - moved > patience:
                    raise RunFailed(
                        f"{taken}, and has come no further than {size(there)} for "
                        f"{now - moved:.0f} s: end it and try again, or read without a copy"
                    )
            if now - said > say_every:
                said = now
                say(f"waiting: {taken}; {size(max(there, 0))} are there")
            time.sleep(_POLL)
        yield held, waited


def note_failure(entry: Path, error: Exception) -> None:
    """Leave word for those who wait, who would only try the same again, one after the other."""
    with suppress(OSError):  # no space for it: then they try
        note = {"kind": _kind(error), "message": str(error), "time": time.time()}
        write_atomic(_note(entry), json.dumps(note), private=True)


def others_failure(entry: Path, since: float) -> None:
    """Fail as the process has that was waited for.

    Args:
        since: seconds since 1970; a failure before is not that one.

    Raises:
        UserError, BadContainer, RunFailed: as it did.
    """
    try:
        note = json.loads(_note(entry).read_bytes())
        kind, message, when = str(note["kind"]), str(note["message"]), float(note["time"])
    except (OSError, ValueError, TypeError, LookupError):
        return
    if when < since:
        return
    if kind == "BadContainer":
        raise BadContainer(message)
    raise UserError(message) if kind == "UserError" else RunFailed(message)


def forget_failure(entry: Path) -> None:
    """Remove such a word."""
    _note(entry).unlink(missing_ok=True)


def forget_failures(root: Path) -> None:
    """Remove all such words; who waits for one just now tries by itself."""
    for note in root.glob(".*.failed"):
        note.unlink(missing_ok=True)


def _note(entry: Path) -> Path:
    return entry.with_name(f".{entry.name}.failed")


def _kind(error: Exception) -> str:
    if isinstance(error, BadContainer):
        return "BadContainer"
    return "UserError" if isinstance(error, UserError) else "RunFailed"
