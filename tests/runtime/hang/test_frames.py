"""The watch reads the main thread's stack while that thread goes on."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from rankup.runtime.hang.recorder import Blocked
from rankup.runtime.hang.state import main_frame, stack_of
from rankup.runtime.world import World
from tests.pool import RankPool

ALLOCATIONS = 50  # a look makes fewer objects than that
# A call of torch.distributed that calls another, which waits.
CALL = """
def outer(waits, ready, group=None, src=0):
    inner(waits, ready, [group], {src})

def inner(waits, ready, group, src, dst=0):
    ready.release()
    waits.acquire()
"""


class _Garbage:
    """What a collection ends while the main thread goes on to other frames."""

    def __init__(self, goes: threading.Lock, gone: threading.Lock) -> None:
        self._me, self._goes, self._gone = self, goes, gone

    def __del__(self) -> None:
        self._goes.release()
        self._gone.acquire()


def _left_while_read(read: Callable[[], object], allocations: int) -> None:
    """Run `read` in a thread; a collection in the midst of it lets this one leave its frames.

    Args:
        allocations: the collection comes after so many objects were made.
    """
    names: dict[str, Callable[..., object]] = {}
    exec(compile(CALL, str(dist.distributed_c10d.__file__), "exec"), names)
    ready, goes, gone, over = (threading.Lock() for _ in range(4))
    for lock in (ready, goes, gone, over):
        lock.acquire()
    raised: list[BaseException] = []

    def look() -> None:
        ready.acquire()  # comes back when the other thread stands in its call
        gc.collect(0)
        _Garbage(goes, gone)
        gc.set_threshold(allocations)
        try:
            read()
        except BaseException as error:
            raised.append(error)
        gc.set_threshold(0)
        gc.collect(0)  # where `read` made fewer objects
        over.release()

    def elsewhere(depth: int, *values: object) -> None:
        a, b, c = list(values), tuple(values), [depth]
        if depth:
            elsewhere(depth - 1, a, b, c)
        else:
            gone.release()
            over.acquire()

    thread = threading.Thread(target=look)
    thread.start()
    names["outer"](goes, ready)
    elsewhere(5)
    thread.join()
    assert not raised, raised


def _read_and_left(world: World) -> int:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # a thread goes on where it is told to, and only there
    met: list[int] = []
    try:
        for allocations in range(1, ALLOCATIONS):
            _left_while_read(
                lambda: met.append(len(Blocked().look(main_frame(), time.time(), 1.0))), allocations
            )
            _left_while_read(lambda: met.append(len(stack_of(main_frame()))), allocations)
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    return sum(map(bool, met))


def test_a_stack_that_is_left_while_it_is_read_breaks_no_memory(ranks: RankPool) -> None:
    [met] = ranks.run(1, _read_and_left)
    assert met > ALLOCATIONS, "most collections came in the midst of a look, or after it"
