"""The header of an .npy, for several threads at once."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Any

import numpy as np

_AGAIN = 8


def read(file: IO[bytes]) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    """Version, shape, whether in Fortran's order, and dtype; `file` then stands behind them.

    numpy reads a header with `ast.literal_eval`. Up to Python 3.12 its parser keeps one count of
    its depth for all threads of a process, and raises a SystemError in one while another parses
    (github.com/python/cpython, issue 106905). That says nothing of the file, so it is read again.

    Args:
        file: at the start of the .npy; can seek.

    Raises:
        ValueError: no header of version 1.0 or 2.0; and what numpy raises for bytes by chance.
    """
    start = file.tell()
    for _ in range(_AGAIN):
        with suppress(SystemError):
            return _read(file)
        file.seek(start)
    return _read(file)


def _read(file: IO[bytes]) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)  # type: ignore[no-untyped-call]
    else:
        raise ValueError(f"an .npy of version {'.'.join(map(str, version))}")
    return version, shape, fortran, dtype
