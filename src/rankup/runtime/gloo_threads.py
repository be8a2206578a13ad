"""gloo's threads at the end of a group, and of a process: they must be at rest before either goes.

A gloo thread drops the tensors of a collective after it has told the waiting rank that all is done.
A tensor that Python once held takes the interpreter's lock to go; a thread that asks for it while
Python shuts down is ended from outside, in the middle of C++ that allows no such thing, and the
process dies of SIGABRT ("terminate called without an active exception") with all its work done.
`destroy_process_group` ends the threads only where nothing refers to a group any more, and models
cut by FSDP or a device mesh do. And where such a thread has the last reference to a group, since
all others went meanwhile, it ends the group, and so would wait for itself: SIGABRT again
("Resource deadlock avoided"). Both seen with torch 2.13 on a loaded node.
"""

from __future__ import annotations

import time
from pathlib import Path

_NAME = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")


def let_gloo_finish(at_most: float = 5.0) -> bool:
    """Wait until this process's gloo threads are idle; False if one still ran after `at_most` s.

    Where there is no /proc nothing is known of threads and nothing is waited for.
    """
    end, quiet = time.monotonic() + at_most, 0
    while quiet < 2:
        quiet = 0 if _running() else quiet + 1
        if time.monotonic() > end:
            return False
        if quiet < 2:
            time.sleep(0.005)  # lets go of the interpreter's lock, for which a thread may wait
    return True


def _running() -> bool:
    """True while a gloo thread runs or is next to run."""
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return False
    for task in tasks:
        try:
            # "ID (name) STATE ...", the name cut to 15 characters.
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if name == _NAME[:15] and rest.split()[0] in "RD":
            return True
    return False
