"""How far the script has come: its first batch, forward, backward and optimizer step.

Training is reached with a forward after a batch was drawn, or with a backward or a step: those show
training without a DataLoader. A forward before any batch is a test of shapes, or a summary.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

from .ending import Ending
from .journal import Journal
from .lazy import Lazy
from .torchside import in_worker


class Training:
    """Watches torch; one for each process."""

    def __init__(self, journal: Journal, lazy: Lazy, ending: Ending) -> None:
        self._journal = journal
        self._lazy = lazy
        self._ending = ending
        self._drawn = False
        self._thread = threading.local()

    def watch_loader(self, module: Any) -> None:
        """`torch.utils.data.dataloader`: Lightning, accelerate and fastai draw from it, too."""
        kind = module._BaseDataLoaderIter
        original = kind.__next__

        @wraps(original)
        def draw(iterator: Any) -> Any:
            if self._is_drawing():
                return original(iterator)
            self._thread.drawing = True
            try:
                with self._lazy.drawing(iterator):
                    batch = original(iterator)
            finally:
                self._thread.drawing = False
            self._first_batch(iterator)
            return batch

        kind.__next__ = draw

    def watch_modules(self, module: Any) -> None:
        """`torch.nn.modules.module`: every call of every module comes by here."""
        module.register_module_forward_pre_hook(self._forward)

    def watch_autograd(self, module: Any) -> None:
        """`torch.autograd`, whose `backward` is also that of tensors."""
        original = module.backward

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._reached("backward")
            return original(*args, **kwargs)

        module.backward = backward

    def watch_optimizers(self, module: Any) -> None:
        """`torch.optim.optimizer`."""
        module.register_optimizer_step_pre_hook(self._step)

    def _is_drawing(self) -> bool:
        return bool(getattr(self._thread, "drawing", False))

    def _first_batch(self, iterator: Any) -> None:
        if self._drawn or in_worker():
            return
        self._drawn = True
        size = getattr(self._lazy.loader(iterator), "batch_size", None)
        self._journal.tell(
            "batch",
            n=1,
            size=size if isinstance(size, int) else None,
            where=self._journal.where(),
            worker_downloads=self._lazy.in_workers(),
        )

    def _forward(self, module: Any, args: Any) -> None:
        if self._lazy.walking or self._is_drawing() or in_worker():
            return
        # The transforms of images are modules as well, but have no parameters.
        if next(module.parameters(), None) is None:
            return
        if self._journal.once("forward"):
            self._journal.tell("forward", model=type(module).__name__, where=self._journal.where())
        if self._drawn:
            self._ending.stop("batch and forward")

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # A step without gradients changes nothing: some call it once before a scheduler is made.
        groups = optimizer.param_groups
        if any(one.grad is not None for group in groups for one in group["params"]):
            self._reached("step")

    def _reached(self, what: str) -> None:
        if not self._lazy.walking and not in_worker():
            self._journal.tell(what, where=self._journal.where())
            self._ending.stop(what)
