"""Why a run failed: each rank writes down its own exception, and the first cause is picked out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ..base.files import write_json

# A rank whose peer died sees its connection break: a consequence, not a cause.
_BROKEN_BY_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "connection was likely closed",
    "NCCL Error 6",
    "remote process exited",
    "recvValue failed",
    "sendBytes failed",
)


@dataclass(frozen=True)
class Failure:
    """One rank's end.

    Attributes:
        time: seconds since 1970.
        message: the exception in a line.
        traceback: of the rank itself; empty where the message says all.
        exit_code: that the run should end with.
        consequence: True when it only followed from another rank's end.
        said_all: the message speaks for all ranks and needs no rank before it.
    """

    rank: int
    node: str
    time: float
    message: str
    traceback: str
    exit_code: int
    consequence: bool = False
    said_all: bool = False


def of_exception(error: BaseException, rank: int, script: str = "") -> Failure:
    """Describe what was raised on this rank; frames before the user's `script` are left out."""
    message, trace, code = f"{type(error).__name__}: {error}", "", EXIT_FAILED
    if isinstance(error, UserError):
        message, code = str(error), EXIT_BAD_INPUT
    elif isinstance(error, RunFailed):
        message = str(error)
    elif isinstance(error, KeyboardInterrupt):
        message, code = "interrupted", 128 + signal.SIGINT
    elif isinstance(error, SystemExit):
        code = error.code % 256 or 1 if isinstance(error.code, int) else 1
        message = f"exited with code {code}"
        if isinstance(error.code, str):
            message += f": {error.code}"
    else:
        trace = _traceback(error, script)
    peer = any(sign in str(error) for sign in _BROKEN_BY_PEER)
    said_all = isinstance(error, UserError | RunFailed)
    return Failure(rank, socket.gethostname(), time.time(), message, trace, code, peer, said_all)


def write(log: Path, failure: Failure) -> None:
    """Leave a failure where the agent and later readers find it."""
    write_json(log / f"failure-rank{failure.rank}.json", asdict(failure))


def forget(log: Path) -> None:
    """Remove the failures of an earlier life."""
    for path in log.glob("failure-rank*.json"):
        path.unlink()


def first_cause(log: Path, exit_codes: Mapping[int, int]) -> Failure:
    """The failure that came first and pulled the others down.

    Args:
        log: where the ranks wrote their failures.
        exit_codes: of the ranks that did not end well, as the launcher saw them; negative for a
            signal.
    """
    written = []
    for path in log.glob("failure-rank*.json"):
        # Where the disk was full, say, the exit code is still known.
        with contextlib.suppress(ValueError, TypeError):
            written.append(Failure(**json.loads(path.read_text())))
    causes = [failure for failure in written if not failure.consequence]
    if causes:
        return min(causes, key=lambda failure: failure.time)
    # The agent itself sends SIGTERM to the survivors, so another signal comes first.
    silent = {r: c for r, c in exit_codes.items() if r not in {f.rank for f in written}}
    killed = {r: c for r, c in silent.items() if c not in (-signal.SIGTERM, 0)}
    if not killed and written:
        first = min(written, key=lambda failure: failure.time)
        message = f"{first.message} (another rank had ended before, without an error)"
        return replace(first, message=message)
    rank, code = min((killed or silent).items())
    return Failure(rank, socket.gethostname(), time.time(), _said(code), "", _shell_code(code))


def report(failure: Failure) -> str:
    """The last words of a failed run: the rank's own traceback, then rank, node and cause."""
    if failure.said_all:
        return f"rankup: {failure.message}"
    head = failure.traceback.rstrip() + "\n\n" if failure.traceback else ""
    return f"{head}rank {failure.rank} on {failure.node} failed: {failure.message}"


def _said(code: int) -> str:
    if code >= 0:
        return f"its process exited with code {code} and said nothing"
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-code, f"signal {-code}")
    hint = "; out of memory is the usual reason" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _traceback(error: BaseException, script: str) -> str:
    """The traceback from the user's script on, where there is one."""
    trace = error.__traceback__
    if script:
        start = trace
        while start is not None and not _same(start.tb_frame.f_code.co_filename, script):
            start = start.tb_next
        # A syntax error is in the script itself, which no frame has entered.
        trace = start if start or isinstance(error, SyntaxError) else trace
    return "".join(traceback.format_exception(type(error), error, trace))


def _same(one: str, other: str) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)
