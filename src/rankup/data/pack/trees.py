"""Files and folders, whichever of the two a container is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ...base.files import fsync_directory


def clear(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """fsync of a file, or of a folder and all below it."""
    if path.is_dir():
        for below in path.iterdir():
            sync(below)
        fsync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocated(path: Path) -> int:
    """Bytes that a file, or all below a folder, take on the disk now."""
    try:
        if path.is_dir():
            return sum(allocated(below) for below in path.iterdir())
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
