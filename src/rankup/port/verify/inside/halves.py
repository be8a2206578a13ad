"""Half precision, of a whole model or of single tensors, becomes float32: it has three digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ....login.fetch.inside.journal import Journal
from .progress import Progress


class Halves:
    """What asks for half precision gets float32, and that is told."""

    def __init__(self, progress: Progress, journal: Journal) -> None:
        self._progress, self._journal = progress, journal

    def install(self, torch: Any) -> None:
        """Models, tensors, and the type that new ones get."""
        halves = (torch.float16, torch.bfloat16)
        for kind in (torch.nn.Module, torch.Tensor):
            kind.to = self._other(kind.to, halves, torch.float32)
            for name in ("half", "bfloat16"):
                setattr(kind, name, self._float(kind.float))
        torch.Tensor.type = self._other(torch.Tensor.type, halves, torch.float32)
        torch.set_default_dtype = self._other(torch.set_default_dtype, halves, torch.float32)

    def _other(self, original: Callable[..., Any], halves: Any, whole: Any) -> Callable[..., Any]:
        def kept(value: Any) -> Any:
            # Compared by identity: a tensor among the arguments compares by its elements.
            if any(value is half for half in halves):
                self._note()
                return whole
            return value

        @wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            named = {name: kept(value) for name, value in kwargs.items()}
            return original(*map(kept, args), **named)

        return changed

    def _float(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def whole(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self._note()
            return original(self_, *args, **kwargs)

        return whole

    def _note(self) -> None:
        text = "half precision: float32 in its place"
        if self._progress.first("note", text):
            self._journal.tell("note", text=text)
