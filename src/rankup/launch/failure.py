"""The cause of a failed run: each rank notes its own exception, and the first cause is chosen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..base import secrets
from ..base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ..base.files import write_json

# A rank whose peer died sees its connection break: a consequence, not a cause.
_BROKEN_BY_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "connection was likely closed",
    "NCCL Error 6",
    "NCCL communicator was aborted",
    "remote process exited",
    "sendBytes failed",
)
_NOTHING_RECEIVED = re.compile(r"recv(Value|Vector)\w{0,40} failed")

# A collective that waited in vain: the rank that did not come is the cause.
_TIMED_OUT = re.compile(
    r"Timed out waiting \d{1,15} ?ms|wait timeout after|collective operation timeout|DistStoreError"
    r"|clients joined|Application timeout caused pair closure|Socket Timeout"
)
_WAITED = re.compile(r"(\d{1,15})\s?(ms|milliseconds|seconds|s)\b")


# Of the ranks, and `failure-hang.json`: the verdict on a hang, left by `runtime/hang/watch.py`.
NOTES = "failure-*.json"
_KILLED = "its process was killed by"


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
        world_size, local_world_size: ranks of the job and of this node; 0 where not known.
    """

    rank: int
    node: str
    time: float
    message: str
    traceback: str
    exit_code: int
    consequence: bool = False
    said_all: bool = False
    world_size: int = 0
    local_world_size: int = 0


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
        message += _where_to_look(error)
    said_all = isinstance(error, UserError | RunFailed)
    return Failure(
        rank=rank,
        node=node_name(),
        time=time.time(),
        message=message,
        traceback=trace,
        exit_code=code,
        consequence=broken_by_peer(str(error)),
        said_all=said_all,
        world_size=_number("WORLD_SIZE"),
        local_world_size=_number("LOCAL_WORLD_SIZE"),
    )


def _where_to_look(error: BaseException) -> str:
    """Return what to do about a module that is not found: a matter of the Python that runs."""
    if isinstance(error, ModuleNotFoundError):
        return f" (the ranks run in {sys.executable}: install it there, or activate what has it)"
    if isinstance(error, ImportError) and "attempted relative import" in str(error):
        return "; a module of a package is run by its name: rankup run -m PACKAGE.MODULE"
    return ""


def node_name() -> str:
    """This node as Slurm calls it (nodes of a cluster may share a host), else the host's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def broken_by_peer(message: str) -> bool:
    """Return True where an exception only says that another process had ended."""
    known = any(sign in message for sign in _BROKEN_BY_PEER)
    return known or bool(_NOTHING_RECEIVED.search(message))


def timed_out(message: str) -> bool:
    """Return True where a collective waited in vain for another rank."""
    return bool(_TIMED_OUT.search(message))


def write(log: Path, failure: Failure) -> None:
    """Leave a failure where the agent and later readers find it; secrets are left out."""
    shown = replace(
        failure,
        message=secrets.redacted(failure.message, os.environ),
        traceback=secrets.redacted(failure.traceback, os.environ),
    )
    write_json(log / f"failure-rank{failure.rank}.json", asdict(shown), private=True)


def forget(log: Path) -> None:
    """Remove the failures of an earlier attempt."""
    for path in log.glob(NOTES):
        path.unlink()


def first_cause(
    notes: Sequence[Failure], silent: Sequence[Failure] = (), nodes: Sequence[str] = ()
) -> Failure | None:
    """Return the failure that came first and pulled the others down; None where there is none.

    Args:
        notes: of the ranks, and of agents on ranks that they saw end.
        silent: the ends of ranks that no note is about, as their launcher saw them.
        nodes: names of the job's nodes, to tell where a silent rank was.
    """
    written = of_ranks(notes)
    silent = [*(note for note in notes if note not in written), *silent]
    if causes := [f for f in written if is_cause(f)] or [f for f in silent if is_cause(f)]:
        return min(causes, key=lambda failure: failure.time)
    if missing := no_answer(written, nodes):
        return missing
    if silent and all(failure.consequence for failure in written):
        # Survivors are sent SIGTERM, so another end says more.
        return min(silent, key=lambda f: (f.exit_code == 128 + signal.SIGTERM, f.time))
    if not written:
        return None
    first = min(written, key=lambda failure: (failure.consequence, failure.time))
    if not first.consequence:
        return first
    message = f"{first.message} (another rank had ended before, without an error)"
    return replace(first, message=message)


def is_cause(failure: Failure) -> bool:
    """Return True for an end that does not only follow from another rank's, or its absence."""
    return not failure.consequence and not timed_out(failure.message)


def of_ranks(notes: Sequence[Failure]) -> list[Failure]:
    """Return the notes but those that an agent left of a rank that SIGTERM had ended."""
    return [note for note in notes if not (note.consequence and was_killed(note))]


def of_codes(exit_codes: Mapping[int, int], notes: Sequence[Failure]) -> list[Failure]:
    """Return the ends of ranks that no note is about; those by SIGTERM where there is no other.

    Args:
        exit_codes: of the ranks that did not end well, as the launcher saw them; negative for a
            signal.
    """
    noted = {note.rank for note in notes}
    silent = {rank: code for rank, code in sorted(exit_codes.items()) if rank not in noted}
    # The agent itself sends SIGTERM to the survivors, so another signal comes first.
    killed = {rank: code for rank, code in silent.items() if code not in (-signal.SIGTERM, 0)}
    if killed:
        return [of_code(rank, node_name(), code) for rank, code in killed.items()]
    if notes:
        return []
    return [replace(of_code(rank, node_name(), c), consequence=True) for rank, c in silent.items()]


def of_code(rank: int, node: str, code: int, message: str = "") -> Failure:
    """Return the end of a process that wrote nothing; `code` is negative for a signal."""
    return Failure(rank, node, time.time(), message or said(code), "", _shell_code(code))


def read_all(log: Path) -> list[Failure]:
    """Return the notes of the ranks, by rank; damaged ones are passed over."""
    written = []
    for path in log.glob(NOTES):
        # Where the disk was full, say, the exit code is still known.
        with contextlib.suppress(OSError, ValueError, TypeError):
            written.append(Failure(**json.loads(path.read_bytes())))
    return sorted(written, key=lambda failure: failure.rank)


def no_answer(written: Sequence[Failure], nodes: Sequence[str] = ()) -> Failure | None:
    """Return, where ranks say only that they waited in vain, the first to say so, with the ranks
    that said nothing in front. None where there is another cause, or all ranks spoke.

    Args:
        nodes: names of the job's nodes, to tell where a silent rank was.
    """
    waited = [f for f in written if timed_out(f.message) and not f.said_all]
    if not waited or len(waited) < sum(not f.consequence for f in written):
        return None
    first = min(waited, key=lambda failure: failure.time)
    spoke = {failure.rank for failure in written}
    missing = [rank for rank in range(min(first.world_size, 1 << 20)) if rank not in spoke]
    if not missing:
        return None
    names = [f"rank {rank}{_on(node_of(rank, written, nodes))}" for rank in missing[:8]]
    if len(missing) > 8:
        names.append(f"{len(missing) - 8} more")
    match = _WAITED.search(first.message)
    waiting = ""
    if match:
        seconds = int(match[1]) / (1000 if match[2].startswith("m") else 1)
        waiting = f" for {seconds:g} s"
    said_so = f"rank {first.rank} on {first.node}"
    if len(missing) == 1:
        who = f"{names[0]} did not answer{waiting}; {said_so} waited for it"
    else:
        listed = ", ".join(names[:-1]) + f" and {names[-1]}"
        who = (
            f"{listed} said nothing; at least one of them did not answer{waiting}, and "
            f"{said_so} waited for it"
        )
    return replace(first, message=f"{who}: {first.message}", said_all=True)


def node_of(rank: int, written: Sequence[Failure], nodes: Sequence[str] = ()) -> str:
    """The node a rank was on, from what others of its node wrote; empty where not known."""
    known = {f.rank // f.local_world_size: f.node for f in written if f.local_world_size > 0}
    per_node = next((f.local_world_size for f in written if f.local_world_size > 0), 0)
    if not per_node:
        return ""
    if (group := rank // per_node) in known:
        return known[group]
    left = [node for node in nodes if node not in known.values()]
    return left[0] if len(left) == 1 else ""


def report(failure: Failure) -> str:
    """The last words of a failed run: the rank's own traceback, then rank, node and cause."""
    if failure.said_all:
        before, line, last = failure.message.rpartition("\n")
        return f"{before}{line}rankup: {last}"
    head = failure.traceback.rstrip() + "\n\n" if failure.traceback else ""
    return f"{head}rank {failure.rank} on {failure.node} failed: {failure.message}"


def was_killed(failure: Failure) -> bool:
    """Return True for a rank that a signal ended, of which its launcher has written that down."""
    return failure.message.startswith(_KILLED)


def said(code: int) -> str:
    """Return the exit code of a process that wrote nothing in words; negative for a signal."""
    if code >= 0:
        return f"its process exited with code {code} and said nothing"
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-code, f"signal {-code}")
    hint = "; out of memory is the usual reason" if name == "SIGKILL" else ""
    return f"{_KILLED} {name}{hint}"


def _on(node: str) -> str:
    return f" on {node}" if node else ""


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


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
