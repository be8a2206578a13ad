"""The files that several ranks opened for writing, said at the end: each holds who wrote last.

Python's audit hook sees what Python itself opens; what a library opens in C is out of its sight.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch.distributed as dist

_KEY = "rankup/written"
_WRITING = os.O_WRONLY | os.O_RDWR
_MOST = 200  # files that are kept in mind
_NAMED = 4  # files that are listed
_PATIENCE = timedelta(seconds=5)  # for ranks that come to their end later
# Made for many processes at once, or no files at all.
_SHARED = ("/__pycache__/", "/torchinductor_", "/.cache/")
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


class WrittenFiles:
    """What this process has opened for writing since `begin`."""

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._on = False

    def begin(self) -> None:
        """Take note from here on."""
        self._paths.clear()
        self._on = True
        _hook(self)

    def note(self, path: object, flags: object) -> None:
        """Note that a file is opened."""
        if not self._on or not isinstance(path, str) or not isinstance(flags, int):
            return
        if flags & _WRITING and len(self._paths) < _MOST:
            self._paths[os.path.abspath(path)] = None

    def shared(self, store: dist.Store, rank: int, size: int) -> str:
        """Say on rank 0 which of its files others have opened, too, as far as they answer in time;
        "" where there is none, and on the others.

        Raises:
            RuntimeError: the store is gone.
        """
        if not self._on:
            return ""
        self._on = False
        files = dict(filter(None, map(_identity, self._paths)))
        if rank:
            store.set(f"{_KEY}/{rank}", json.dumps(files))
            return ""
        keys = {other: f"{_KEY}/{other}" for other in range(1, size)}
        if not files:
            return ""
        with contextlib.suppress(RuntimeError):  # one is late, or has failed
            store.wait([*keys.values()], _PATIENCE)
        theirs = {n: json.loads(store.get(key)) for n, key in keys.items() if store.check([key])}
        shared = []
        for path, inode in files.items():
            ranks = [0, *(n for n, other in theirs.items() if other.get(path) == inode)]
            if len(ranks) > 1:
                shared.append(f"{path} ({len(ranks)} ranks)")
        if not shared:
            return ""
        more = f" and {len(shared) - _NAMED} more" if len(shared) > _NAMED else ""
        return (
            f"several ranks opened the same file for writing: {', '.join(shared[:_NAMED])}"
            f"{more}. It holds what each of them wrote, or only what the last one did: write on "
            "rank 0 alone, by save0, path0 or `if rankup.is_root_process():`"
        )


WRITTEN = WrittenFiles()
"""Those of this process."""


@cache
def _hook(files: WrittenFiles) -> None:
    """Begin to listen; Python knows no way to end that."""

    def hear(event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            files.note(args[0], args[2])

    sys.addaudithook(hear)


def _identity(path: str) -> tuple[str, int] | None:
    """A file's true path and number, by which two nodes' own disks differ; None for one that is
    gone, or that many processes share by design."""
    real = os.path.realpath(path)
    caches = [value for name in _CACHES if (value := os.environ.get(name))]
    if real.endswith(".lock") or real.startswith((*_SYSTEM, *caches)):
        return None
    if any(part in real for part in _SHARED):
        return None
    try:
        return real, Path(real).stat().st_ino
    except OSError:
        return None
