"""Memory that the training process and a worker share, and batches written into it.

A worker makes a batch right there, and only a few words about it travel through a pipe. The memory
belongs to no file system, so neither a small /dev/shm nor data that is staged there is in its way,
and it is used again once nobody holds the batch: fresh memory costs a page fault for every 4 KiB.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

_LEAST = 1 << 20
_ALIGNED = 64
_SMALL = 1 << 14  # bytes up to which something travels through the pipe


class Slot:
    """Memory for one batch, which grows as it is needed. Each side has a `Slot` of its own.

    Args:
        descriptor: of the memory; it belongs to the slot from then on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def new(cls) -> Slot:
        """Memory that nobody has yet."""
        return cls(os.memfd_create("rankup-batch", os.MFD_CLOEXEC))

    def mapped(self, size: int) -> mmap.mmap:
        """The memory, at least `size` bytes of it; what was mapped before stays valid."""
        if self._map is None or len(self._map) < size:
            have = os.fstat(self.descriptor).st_size
            if have < size:
                have = max(size, 2 * have, _LEAST)
                os.ftruncate(self.descriptor, have)
            self._map = mmap.mmap(self.descriptor, have)
        return self._map

    def write(self, data: bytes) -> None:
        """Put something at its beginning."""
        self.mapped(len(data))[: len(data)] = data

    def close(self) -> None:
        """Let go of it; batches in it stay valid."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._map = -1, None


class Written(NamedTuple):
    """Where something lies in a slot.

    Attributes:
        head: the pickled rest; None where it is the last of `parts`.
        parts: (offset, length) of each.
    """

    head: bytes | None
    parts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of the slot that are in use."""
        return max((offset + length for offset, length in self.parts), default=0)


class Filling:
    """One batch on its way into a slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._used = 0
        self._views: list[np.ndarray[Any, Any]] = []  # of what is mapped; it may grow meanwhile

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the slot, its values undefined."""
        count = int(torch.Size(shape).numel())
        if not count:
            return torch.empty(shape, dtype=dtype)
        offset = self._take(count * dtype.itemsize)
        return torch.frombuffer(
            self._views[-1].data, dtype=dtype, count=count, offset=offset
        ).reshape(shape)

    def write(self, value: Any) -> Written:
        """Put anything that can be pickled there: arrays are copied, if they are not there yet."""
        parts: list[tuple[int, int]] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _SMALL:
                return True
            parts.append(self._placed(raw))
            return False

        head = io.BytesIO()
        _Pickler(head, apart).dump(value)
        text = head.getbuffer()
        if text.nbytes < _SMALL:
            return Written(bytes(text), tuple(parts))
        parts.append(self._placed(text))
        return Written(None, tuple(parts))

    def _take(self, size: int) -> int:
        offset = -(-self._used // _ALIGNED) * _ALIGNED
        self._used = offset + size
        memory = self._slot.mapped(self._used)
        if not self._views or len(self._views[-1]) < self._used:
            self._views.append(np.frombuffer(memory, np.uint8))
        return offset

    def _placed(self, raw: memoryview) -> tuple[int, int]:
        size = raw.nbytes
        data = np.frombuffer(raw, np.uint8)
        at = data.ctypes.data
        for view in self._views:
            if 0 <= at - view.ctypes.data < len(view):
                return at - view.ctypes.data, size
        offset = self._take(size)
        self._views[-1][offset : offset + size] = data
        return offset, size


def read(slot: Slot, written: Written, released: Callable[[], None], *, copy: bool = False) -> Any:
    """What a worker has written: its arrays and tensors are views of the slot.

    Args:
        released: called once nobody holds any of them any more.
        copy: take it out of the slot instead.
    """
    # All views refer to this one array, so its end is the end of them all.
    whole = np.frombuffer(slot.mapped(max(1, written.size)), np.uint8)
    weakref.finalize(whole, released).atexit = False
    views = [whole.data[offset : offset + length] for offset, length in written.parts]
    head = views.pop() if written.head is None else written.head
    buffers = map(bytearray, views) if copy else views
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - the worker is ours


class _Pickler(pickle.Pickler):
    """Tensors go as arrays do: their bytes apart, where they may stay where they are."""

    def __init__(self, file: io.BytesIO, apart: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, 5, buffer_callback=apart)
        self._kept: list[torch.Tensor] = []  # until it is done: what follows is their memory

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _plain(value):
            return NotImplemented
        if not _dense(value):
            value = value.contiguous()
        self._kept.append(value)
        size = value.numel() * value.element_size()
        memory = (ctypes.c_char * size).from_address(value.data_ptr())
        shape, stride = tuple(value.shape), value.stride()
        return _rebuilt, (pickle.PickleBuffer(memory), value.dtype, shape, stride)


def _plain(value: torch.Tensor) -> bool:
    return (
        value.device.type == "cpu"
        and value.layout == torch.strided
        and value.numel() > 0
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
    )


def _dense(value: torch.Tensor) -> bool:
    """Whether its values fill a piece of memory, in whatever order of dimensions."""
    filled = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and stride != filled:
            return False
        filled *= size
    return True


def _rebuilt(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)
