"""The files that a list names, as they lie on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..containers.files import refuse
from ..containers.outside import below, real, shown, told
from ..index import Int64s

_THREADS = 16  # a `stat` costs milliseconds on a parallel file system
_AT_ONCE = 1024


def stats(path: Path, names: Sequence[bytes]) -> tuple[Int64s, Int64s, dict[str, Any]]:
    """Sizes and times of a list's files, and what is to be said of those outside of its folder.

    Raises:
        UserError: some are missing or no files; all are counted, the first ones named.
    """
    sizes, times = np.empty(len(names), np.int64), np.empty(len(names), np.int64)
    inside = real(os.fsencode(path.parent))
    folders: dict[bytes, bytes] = {}  # where folders really are: asked once for each

    def lies_outside(name: bytes, link: bool) -> bool:
        if link:
            return not below(real(name), inside)
        folder = os.path.dirname(name)
        if folder not in folders:
            folders[folder] = real(folder)
        return not below(folders[folder], inside)

    def ask(start: int) -> tuple[list[str], list[bytes]]:
        problems, outside = [], []
        for row in range(start, min(start + _AT_ONCE, len(names))):
            name = names[row]
            try:
                about = os.lstat(name)
                if link := stat.S_ISLNK(about.st_mode):
                    about = os.stat(name)
            except OSError as error:
                problems.append(f"{shown(name)}: {error.strerror}")
                continue
            if not stat.S_ISREG(about.st_mode):
                problems.append(f"{shown(name)} is no file")
            elif lies_outside(name, link):
                outside.append(name)
            sizes[row], times[row] = about.st_size, about.st_mtime_ns
        return problems, outside

    with ThreadPoolExecutor(_THREADS, "rankup-list") as pool:
        found = list(pool.map(ask, range(0, len(names), _AT_ONCE)))
    problems = [problem for part, _ in found for problem in part]
    refuse(problems, f"of the {len(names)} files in {path}", "cannot be packed")
    outside = [name for _, part in found for name in part]
    return sizes, times, told(outside, path.parent)
