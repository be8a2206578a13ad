"""Headers of .npy files."""

from __future__ import annotations

import io

import numpy as np
import pytest

from rankup.data import npy_header


def _file(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> io.BytesIO:
    file = io.BytesIO(b"before")
    file.seek(0, io.SEEK_END)
    np.lib.format.write_array(file, array, version)
    file.seek(len(b"before"))
    return file


@pytest.mark.parametrize("times", [1, 3])
def test_pythons_parser_trips_over_another_thread(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    read = np.lib.format.read_array_header_1_0
    tries = 0

    def tripping(file: io.BytesIO) -> object:
        nonlocal tries
        tries += 1
        found = read(file)
        if tries <= times:
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=50)")
        return found

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", tripping)
    file = _file(np.zeros((2, 3), np.int16))
    assert npy_header.read(file)[1] == (2, 3)
    assert len(file.read()) == 12
