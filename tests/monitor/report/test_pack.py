"""Arrays as the page carries them, read back as the page reads them."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
import pytest

from rankup.monitor.report.pack import LEVELS, Packer


def unpacked(text: str, reference: dict[str, Any]) -> np.ndarray:
    """What `decode.js` does."""
    data = gzip.decompress(base64.b64decode(text))
    kind = {"f4": "<f4", "u2": "<u2", "u1": "u1"}[reference["kind"]]
    assert reference["at"] % 4 == 0
    codes = np.frombuffer(data, kind, reference["count"], reference["at"])
    if kind == "<f4":
        return codes
    missing = np.iinfo(codes.dtype).max
    values = reference["low"] + codes.astype(np.float64) * reference["step"]
    return np.where(codes == missing, np.nan, values)


def test_all_kinds_come_back() -> None:
    values = np.array([0, 1.5, np.nan, 97.25, 100], np.float32)
    packer = Packer()
    references = [packer.exact(values), packer.rough(values, 0, 100), packer.fine(values)]
    exact, rough, fine = (unpacked(packer.text(), one) for one in references)
    np.testing.assert_array_equal(exact, values)
    np.testing.assert_allclose(fine, values, atol=100 / 65534)
    np.testing.assert_allclose(rough, values, atol=0.5 * 100 / LEVELS)


@pytest.mark.parametrize("values", [[], [np.nan, np.nan], [3.0, 3.0]])
def test_arrays_without_a_range(values: list[float]) -> None:
    packer = Packer()
    array = np.array(values, np.float32)
    reference = packer.fine(array)
    np.testing.assert_array_equal(unpacked(packer.text(), reference), array)


def test_beyond_the_scale_is_its_end() -> None:
    packer = Packer()
    reference = packer.rough(np.array([-5, 120], np.float32), 0, 100)
    np.testing.assert_allclose(unpacked(packer.text(), reference), [0, 100])


def test_infinity_is_missing() -> None:
    packer = Packer()
    reference = packer.fine(np.array([1, np.inf, -np.inf, 2], np.float32))
    np.testing.assert_allclose(unpacked(packer.text(), reference), [1, np.nan, np.nan, 2])
