"""Copies of packs in the memory of a node, which `rankup.data.open` finds by itself. No torch.

    <home>/rankup-<uid>/            home: $RANKUP_STAGE_DIR, else /dev/shm, else $TMPDIR; mode 0700
        .<key>.lock                 somebody copies, releases or removes; see `base.lock`
        .<key>.failed               how the last attempt ended, for those who waited for it
        <key>/                      one source; a link to such a folder where the copy is elsewhere
            part/NAME               what is being copied
            data/NAME               what is there: a file, or a folder with its files
            index.npz               the index, so that the source is not asked again; without
                                samples of a single file that is no pack
            users/                  a file for each job that uses it
            ready.json              the marker, written last
        .mounts/                    images that are mounted; see `mount`, `mounting`

`place` knows the names, `find` reads the marker, `users` says who uses a copy, `keeping` lists and
removes them, `memory` and `room` say whether one fits. To make one: `core` waits its turn
(`waiting`) or shares, `plan` says what is copied, `choosing` where to, `part` is the copy while it
is made, of `pieces`, `copying` fills it (or `broadcast`: `meeting`, `peers`, `wire`), and `making`
has the order of that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Staged, clean, release, stage
    from .keeping import listed

# What opens a copy needs none of them, so that they are imported when they are used.
_HOME = {
    "Staged": "core",
    "clean": "core",
    "listed": "keeping",
    "release": "core",
    "stage": "core",
}

__all__ = ["Staged", "clean", "listed", "release", "stage"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
