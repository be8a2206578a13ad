"""What DALI is given of a sample: its bytes, and what becomes of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from .. import images
from ..errors import BadContainer
from ..photos.decoding import measure
from ..photos.shaping import Photo, View

_END = b"\xff\xd9"  # of a JPEG


class Item(NamedTuple):
    data: npt.NDArray[np.uint8]
    view: View


class Encode:
    """The transform of the data set that reads ahead of DALI: bytes stay bytes.

    Attributes:
        refused: what DALI has said of bytes that it could not decode, by their xxh3.
    """

    def __init__(self, transform: Photo) -> None:
        self._transform = transform
        self.refused: dict[int, str] = {}

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> Item:
        if self.refused:
            why = self.refused.get(xxhash.xxh3_64_intdigest(data))
            if why is not None:
                raise BadContainer(f"DALI cannot decode this {images.kind_of(data)}: {why}")
        size = measure(data)
        # DALI reads no further than a part's last row, and would not see that more is missing.
        if (
            size.jpeg
            and _END not in bytes(data[-64:])
            and _END not in bytes(data[len(data) // 2 :])
        ):
            raise BadContainer("the photo was cut short")
        view = self._transform.view(size.height, size.width, rng)
        return Item(np.frombuffer(data, np.uint8), view)
