"""How far the script has come: its first batch, forward, backward and optimizer step.

Training is reached with a forward after a batch was drawn, or with a backward or a step: those show
training without a DataLoader. A forward before any batch is a test of shapes, or a summary.

A data set that uses the network while a batch is drawn downloads its samples one by one: of those
only the first ones come, which is told.
"""

from __future__ import annotations

import sys
import threading
from functools import wraps
from typing import Any

from .ending import Ending
from .journal import Journal


class Training:
    """Watches torch; one for each process."""

    def __init__(self, journal: Journal, ending: Ending) -> None:
        self._journal = journal
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
                batch = original(iterator)
            finally:
                self._thread.drawing = False
            if not self._drawn and not in_worker():
                self._drawn = True
                self._journal.tell("batch", where=self._journal.where())
            return batch

        kind.__next__ = draw

    def network_used(self) -> None:
        """The network is used, just now."""
        if (in_worker() or self._is_drawing()) and self._journal.once("lazy"):
            self._journal.tell("lazy", where=self._journal.where())

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

    def _forward(self, module: Any, args: Any) -> None:
        if self._is_drawing() or in_worker():
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
        if not in_worker():
            self._journal.tell(what, where=self._journal.where())
            self._ending.stop(what)


def in_worker() -> bool:
    """Return True in a worker of a DataLoader."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker._worker_info is not None
