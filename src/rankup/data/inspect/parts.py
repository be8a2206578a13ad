"""All samples of a container cut into parts, in the order of its files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..index import Index, Int64s

# Of a part; few enough for a bar that moves, enough to be worth a message.
_BYTES = 64 << 20
_ROWS = 4096


@dataclass(frozen=True)
class Parts:
    """Spans of bytes to be read one after another.

    Attributes:
        field: uint16 (k,), row of `Index.fields`.
        row: int64 (k,), the sample.
        edges: int64 (p + 1,), where each part begins in them, and the end.
        total: bytes of all, where they are known.
    """

    field: npt.NDArray[np.uint16]
    row: Int64s
    edges: Int64s
    total: int

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, part: int) -> list[tuple[int, int]]:
        """Field and row of each span of a part."""
        span = slice(int(self.edges[part]), int(self.edges[part + 1]))
        return list(zip(self.field[span].tolist(), self.row[span].tolist(), strict=True))


def parts(index: Index, start: int, stop: int) -> Parts:
    """The samples [start, stop), each field, by file and offset; what has no place comes last."""
    count = stop - start
    field = np.repeat(np.arange(len(index.fields), dtype=np.uint16), count)
    row = np.tile(np.arange(start, stop, dtype=np.int64), len(index.fields))
    none = np.empty(0, np.int64)
    offset = np.concatenate([none, *(one.offset[start:stop] for one in index.fields)])
    length = np.concatenate([none, *(one.length[start:stop] for one in index.fields)])
    file = np.concatenate(
        [
            none,
            *(
                np.zeros(count, np.int64) if one.file is None else one.file[start:stop]
                for one in index.fields
            ),
        ]
    )
    # A fallback reads best in the order of its own numbers, and those of one field together.
    by_number = offset < 0
    file = np.where(by_number, (1 << 32) + field.astype(np.int64), file)
    order = np.lexsort((np.where(by_number, ~offset, offset), file))
    length = np.maximum(length[order], 0)
    cost = np.cumsum(length + _BYTES // _ROWS)
    edges = np.flatnonzero(np.diff(cost // _BYTES)) + 1
    edges = np.concatenate([[0], edges, [len(order)]] if len(order) else [[0]]).astype(np.int64)
    return Parts(field[order], row[order], edges, int(length.sum()))
