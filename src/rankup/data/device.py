"""Batches on their way to a GPU, one ahead of the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .draw import Draw
from .making import Made


def mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting of dicts, lists and tuples, with each tensor through a function."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: mapped(one, function) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, function) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(one, function) for one in value)
    return value


def pin(value: Any) -> Any:
    """With each tensor in page-locked memory."""
    return mapped(value, torch.Tensor.pin_memory)


def copied_ahead(
    batches: Iterator[tuple[Draw, Made, Any]], device: torch.device
) -> Iterator[tuple[Draw, Made, Any]]:
    """The same batches on a GPU: the next one is copied while the present one is trained on.

    The copies run on a stream of their own; what is handed out may be used on the stream that is
    current then, as if it had been made there. Page-locked batches are copied without waiting.
    """
    stream = torch.cuda.Stream(device)
    waiting: tuple[Draw, Made, Any, Any, torch.cuda.Event] | None = None
    for draw, made, batch in batches:
        with torch.cuda.stream(stream):
            there = mapped(batch, lambda one: one.to(device, non_blocking=True))
            done = torch.cuda.Event()
            done.record(stream)
        if waiting is not None:
            yield _arrived(waiting, device)
        waiting = draw, made, batch, there, done
    if waiting is not None:
        yield _arrived(waiting, device)


def _arrived(
    waiting: tuple[Draw, Made, Any, Any, torch.cuda.Event], device: torch.device
) -> tuple[Draw, Made, Any]:
    draw, made, source, there, done = waiting
    current = torch.cuda.current_stream(device)
    current.wait_event(done)

    def used_there(one: torch.Tensor) -> torch.Tensor:
        # Its memory is not given to another copy before this stream has done with it.
        one.record_stream(current)
        return one

    done.synchronize()  # a batch ago it was started; only then may its source be written again
    del source
    return draw, made, mapped(there, used_there)
