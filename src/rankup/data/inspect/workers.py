"""The same work on many parts, in as many forked processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ...base.errors import UserError
from ..errors import BadContainer

Part = TypeVar("Part")
Result = TypeVar("Result")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[Part], Result], parts: Sequence[Part], workers: int) -> Iterator[Result]:
    """`work(part)` for each of the parts, in no order.

    What `work` holds is shared by fork; its results travel pickled.

    Raises:
        UserError, OSError: as `work` did; the others are ended.
        BadContainer: a process was killed, as one is whose file is cut short while it is mapped.
    """
    context = multiprocessing.get_context("fork")
    workers = max(1, min(workers, len(parts)))
    running: dict[Connection, Any] = {}
    try:
        for number in range(workers):
            receive, send = context.Pipe(duplex=False)
            others = [*running, receive]
            process = context.Process(
                target=_work, args=(work, parts[number::workers], send, others), daemon=True
            )
            process.start()
            send.close()
            running[receive] = process
        while running:
            for end in wait(list(running)):
                assert isinstance(end, Connection)
                try:
                    kind, value = end.recv()
                except EOFError:
                    _lost(running.pop(end))
                else:
                    if kind == "result":
                        yield value
                    elif kind == "error":
                        raise value
                    else:
                        running.pop(end).join()
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _work(
    work: Callable[[Any], Any], parts: Sequence[Any], send: Connection, others: list[Connection]
) -> None:
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # else a parent that dies would not be noticed
        other.close()
    try:
        for part in parts:
            send.send(("result", work(part)))
        send.send(("done", None))
    except BrokenPipeError:
        os._exit(1)
    except (UserError, OSError) as error:
        send.send(("error", error))


def _lost(process: Any) -> None:
    process.join()
    code = process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise BadContainer(
        f"one of the processes that read was ended ({how}): was the file cut short meanwhile, or "
        f"is memory short?"
    )
