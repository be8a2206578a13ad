"""New metadata of Arrow's IPC formats: a message or footer that pyarrow has made is the form, and
the numbers of another batch or list of batches are put in.

That works since a FlatBuffer's size depends on the schema alone, see `arrow_message`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from ..index import Int64s
from .arrow_message import BLOCK, Blocks, behind, root, slot


@dataclass(frozen=True)
class Form:
    """A record batch's metadata with the places of its numbers.

    Attributes:
        data: the bytes, from the first marker on; so long that the body is aligned.
        rows, size, nodes, buffers: where in them these numbers stand.
    """

    data: bytes
    rows: int
    size: int
    nodes: int
    buffers: int

    def filled(self, rows: int, size: int, nodes: Int64s, buffers: Int64s) -> bytes:
        """The metadata of a batch.

        Args:
            nodes: int64 (nodes, 2).
            buffers: int64 (buffers, 2).
        """
        made = bytearray(self.data)
        struct.pack_into("<q", made, self.rows, rows)
        struct.pack_into("<q", made, self.size, size)
        made[self.nodes : self.nodes + nodes.nbytes] = nodes.tobytes()
        made[self.buffers : self.buffers + buffers.nbytes] = buffers.tobytes()
        return bytes(made)


def form(message: bytes, align: int) -> Form:
    """From any record batch of the same schema, with one row or more.

    Args:
        message: the batch as pyarrow serializes it; what follows its metadata is not used.
    """
    head = 8 + struct.unpack_from("<i", message, 4)[0]
    made = padded(message[:head], align)
    data = np.frombuffer(made, np.uint8)
    table = root(data, np.array([8]))
    batch = behind(data, table, 2, "the batch")
    return Form(
        made,
        rows=int(slot(data, batch, 0)[0]),
        size=int(slot(data, table, 3)[0]),
        nodes=int(behind(data, batch, 1, "nodes")[0]) + 4,
        buffers=int(behind(data, batch, 2, "buffers")[0]) + 4,
    )


def padded(message: bytes, align: int, before: int = 0) -> bytes:
    """A message's metadata, so long that what follows is aligned.

    Args:
        before: bytes of the file before it.
    """
    made = message + bytes(-(before + len(message)) % align)
    return made[:4] + struct.pack("<i", len(made) - 8) + made[8:]


def footer_of(form: bytes, blocks: Blocks) -> bytes:
    """A footer that lists other batches.

    Args:
        form: of a file of the same schema with a batch or more.
    """
    # The new list goes to the end; a FlatBuffer's references lead forward to any place. The old
    # one stays, of no use.
    made = bytearray(form)
    made += bytes((4 - len(made)) % 8)  # its entries, after four bytes, begin at a multiple of 8
    data = np.frombuffer(form, np.uint8)
    reference = int(slot(data, root(data, np.array([0])), 3)[0])
    struct.pack_into("<I", made, reference, len(made) - reference)
    listed = np.zeros(len(blocks.offset), BLOCK)
    listed["offset"], listed["head"], listed["body"] = blocks.offset, blocks.head, blocks.body
    return bytes(made) + struct.pack("<I", len(listed)) + listed.tobytes()
