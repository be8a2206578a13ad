"""A pipeline of DALI: bytes and coordinates in, pictures out, in the order of their requests."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...base.errors import UserError
from ..fetch import Answer
from ..photos.shaping import Photo
from .encoded import Item

# Bytes, and for each a row of numbers: what `_built` asks its source for.
_Columns = tuple[Any, ...]

_ENDED = (RuntimeError, IndexError, ValueError, TypeError, OSError)  # as DALI's errors arrive


@dataclass(frozen=True)
class Setting:
    """What a pipeline is built of.

    Attributes:
        transform: what is done to each photo.
        most: samples of a batch, at most.
        threads: DALI's own.
        prefetch: batches that it is ahead.
        device: that decodes.
    """

    transform: Photo
    most: int
    threads: int
    prefetch: int
    device: torch.device


class Failed(Exception):  # noqa: N818
    """DALI has ended a pipeline; the text is its reason."""


class Pipeline:
    """A DALI pipeline.

    Attributes:
        waiting: batches that it was given and has not made yet.
        idle: another run may begin.
        error: what ended reading ahead.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.waiting: deque[Answer] = deque()
        self.idle = True
        # DALI copies no bytes: what it is at has to stay where it is.
        self._held: deque[_Columns] = deque()
        self._ahead: Iterator[Answer] = iter(())
        self.error: Exception | None = None
        self._pipeline = _built(setting, self._next)

    def run(self, ahead: Iterator[Answer]) -> Iterator[Answer]:
        """Batches in their order; what goes wrong while reading ahead comes after those before it.

        Args:
            ahead: batches whose inputs are `Item`s; they become a tensor.

        Raises:
            Failed: DALI has ended the pipeline.
        """
        self._ahead, self.error, self.idle = ahead, None, False
        try:
            failed = self._schedule()
            if failed is not None:
                raise failed
            while (images := self._images()) is not None:
                request, made = self.waiting.popleft()
                self._held.popleft()
                made.inputs = images
                failed = self._schedule()
                yield request, made
                if failed is not None:  # that is a later batch's
                    raise failed
        except GeneratorExit:
            self._discard()
            raise
        self._pipeline.reset()
        self.idle = True
        if self.error is not None:
            raise self.error

    def _next(self) -> _Columns:
        """What DALI calls for the next batch."""
        try:
            request, made = next(self._ahead)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise StopIteration from None
        columns = _columns(made.inputs)
        self.waiting.append((request, made))
        self._held.append(columns)
        return columns

    def _schedule(self) -> Failed | None:
        """Have DALI begin with the next batch; at first, with all that it is ahead."""
        try:
            self._pipeline.schedule_run()
        except _ENDED as error:
            return Failed(_reason(error))
        return None

    def _images(self) -> torch.Tensor | None:
        """The next batch's; None behind the last one."""
        device = self._setting.device
        try:
            (made,) = self._pipeline.share_outputs()
            dense = made.as_tensor()
            if device.type == "cuda":
                with torch.cuda.device(device):
                    images = torch.from_dlpack(dense)
            else:
                images = torch.from_dlpack(dense)
            # Its memory is the tensor's from here on.
            self._pipeline.release_outputs()
        except StopIteration:
            return None
        except _ENDED as error:
            raise Failed(_reason(error)) from error
        return images.permute(0, 3, 1, 2)

    def _discard(self) -> None:
        """Make what was begun and let nobody have it, so that the next run begins with its own."""
        self._ahead = iter(())
        with suppress(Failed):
            if (failed := self._schedule()) is not None:
                raise failed
            while self._images() is not None:
                pass
            self._pipeline.reset()
            self.idle = True
        self.waiting.clear()
        self._held.clear()


def _columns(items: list[Item]) -> _Columns:
    views = [one.view for one in items]
    starts = np.array([view.part[:2] for view in views], np.int32)
    shapes = np.array([view.part[2:] for view in views], np.int32)
    sizes = np.array([view.size for view in views], np.float32)
    corners = np.array([view.corner for view in views], np.int32)
    flips = np.array([view.flip for view in views], np.int32)
    return [one.data for one in items], starts, shapes, sizes, corners, flips


def _built(setting: Setting, source: Callable[[], _Columns]) -> Any:
    """The pipeline: decode a part, resize it, cut the result out of that, maybe flip it."""
    dali = imported()
    fn, types = dali.fn, dali.types
    height, width, _ = setting.transform.shape
    mixed = setting.device.type == "cuda"
    pipeline = dali.Pipeline(
        batch_size=setting.most,
        num_threads=setting.threads,
        device_id=setting.device.index if mixed else None,
        prefetch_queue_depth=setting.prefetch,
    )
    with pipeline:
        data, starts, shapes, sizes, corners, flips = fn.external_source(
            source,
            num_outputs=6,
            batch=True,
            no_copy=True,
            dtype=[types.UINT8, types.INT32, types.INT32, types.FLOAT, types.INT32, types.INT32],
            ndim=[1, 1, 1, 1, 1, 0],
        )
        pictures = fn.decoders.image_slice(
            data,
            device="mixed" if mixed else "cpu",
            start=starts,
            shape=shapes,
            axis_names="HW",
            adjust_orientation=False,
        )
        pictures = fn.resize(pictures, size=sizes, interp_type=types.INTERP_LINEAR, antialias=True)
        pictures = fn.slice(pictures, start=corners, shape=(height, width), axis_names="HW")
        pipeline.set_outputs(fn.flip(pictures, horizontal=flips))
    pipeline.build()
    return pipeline


def refusals(items: list[Item], setting: Setting) -> list[tuple[Item, str]]:
    """Samples that DALI does not decode, and why, by trying each alone."""
    found = []
    alone = replace(setting, most=1, prefetch=1)
    held: deque[_Columns] = deque(maxlen=1)
    pipeline = None
    for item in items:
        held.append(_columns([item]))
        pipeline = pipeline or _built(alone, lambda: held[0])
        try:
            pipeline.run()
        except _ENDED as error:
            found.append((item, _reason(error)))
            pipeline = None
    return found


def _reason(error: Exception) -> str:
    """DALI's own words, without the story around them."""
    found = _STORY.search(str(error))
    text = found[1] if found else str(error)
    return " ".join(text.split()).rstrip(":") or type(error).__name__


_STORY = re.compile(r"encountered:\s*(.*?)\s*(?:Current pipeline|$)", re.DOTALL)


def imported() -> Any:
    try:
        import nvidia.dali as dali
        import nvidia.dali.fn
        import nvidia.dali.types  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"NVIDIA DALI is not here ({error}): pip install 'rankup[dali]', or use a Loader"
        ) from None
    return dali
