"""Tells the loss of each backward, and gradients and parameters of each optimizer step."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import zlib
from functools import wraps
from typing import Any

from ....login.fetch.inside.journal import Journal
from ..plan import Run
from .progress import Progress


class Steps:
    """Watches the training of one rank.

    Args:
        initial: folder for the values that the original's optimizers began with.
    """

    def __init__(self, run: Run, rank: int, initial: str, progress: Progress, journal: Journal):
        self._run, self._rank, self._initial = run, rank, initial
        self._progress, self._journal = progress, journal
        self._optimizers = 0

    def install(self, torch: Any) -> None:
        """All of torch."""
        self._watch_backward(torch.autograd)
        module = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        self._same_beginning(torch, module.Optimizer)

    def finished(self) -> None:
        """Tell the parameters of all models that are left, averaged copies included."""
        import torch

        gc.collect()  # what nobody holds any more is not left
        children: set[int] = set()
        modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
        for module in modules:
            children.update(id(child) for child in module.children())
        found = [
            (type(module).__name__, _checksum(module.parameters()))
            for module in modules
            if id(module) not in children and _has_values(module)
        ]
        self._journal.tell("models", found=sorted(found))

    def _watch_backward(self, module: Any) -> None:
        original = module.backward

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            root = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
            told = self._weights()
            result = original(tensors, *args, **kwargs)
            self._progress.backwards += 1
            value = float(root.detach()) if getattr(root, "numel", int)() == 1 else None
            told["loss"] = value if value is None or math.isfinite(value) else str(value)
            self._journal.tell("backward", **told, where=self._journal.where())
            return result

        module.backward = backward

    def _weights(self) -> dict[str, Any]:
        samples, units = self._progress.drawn, None
        for ledger in _ledgers():
            if ledger.samples is not None and ledger.samples[0] == 0:
                samples = 0  # what was drawn only keeps this rank in step
            units = ledger.units if ledger.units is not None else units
        return {"n": self._progress.backwards, "samples": samples, "units": units}

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        total, seen = 0.0, 0
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                gradient = _whole(parameter.grad)
                gradient = gradient.to_dense() if gradient.is_sparse else gradient
                total += float(gradient.double().pow(2).sum())
                seen += 1
        optimizer._rankup_gradient = math.sqrt(total) if seen else None

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        norm = getattr(optimizer, "_rankup_gradient", None)
        if norm is None:
            return
        self._progress.steps += 1
        number = getattr(optimizer, "_rankup_number", -1)
        # A checksum of numbers that are not finite may differ although all is as bad everywhere.
        fields = {"optimizer": number, "n": self._progress.steps, "after": self._progress.backwards}
        shown = norm if math.isfinite(norm) else str(norm)
        sums = _checksum(_parameters(optimizer))
        self._journal.tell("step", **fields, gradient=shown, parameters=sums)
        if self._rank == 1 and self._progress.steps == self._run.kill_at:
            self._journal.tell("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    def _same_beginning(self, torch: Any, kind: Any) -> None:
        original = kind.__init__

        @wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not hasattr(optimizer, "_rankup_number"):
                optimizer._rankup_number = self._optimizers
                self._optimizers += 1
                self._begin(torch, optimizer)

        kind.__init__ = init

    def _begin(self, torch: Any, optimizer: Any) -> None:
        """The original's initial values are everybody's: only what follows is compared."""
        path = os.path.join(self._initial, f"initial-{optimizer._rankup_number}.pt")
        parameters = _parameters(optimizer)
        if not self._run.world:
            torch.save([_whole(one.detach()).clone() for one in parameters], path)
            return
        if not os.path.exists(path):
            return
        values = torch.load(path, weights_only=True)
        if [one.shape for one in values] != [one.shape for one in parameters]:
            text = "the optimizers of the two scripts have other parameters: each begins by itself"
            if self._progress.first("note", text):
                self._journal.tell("note", text=text)
            return
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                if type(parameter.data).__name__ != "DTensor":
                    parameter.copy_(value)


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _checksum(tensors: Any) -> int:
    import torch

    total = 0
    for tensor in tensors:
        if tensor.is_meta or tensor.is_sparse:
            continue
        value = _whole(tensor.detach()).cpu().contiguous()
        total = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy(), total)
    return total


def _has_values(module: Any) -> bool:
    """Whether it has parameters; a model that only tells its shapes is none that was trained."""
    first = next(module.parameters(), None)
    return first is not None and not first.is_meta


def _ledgers() -> list[Any]:
    """Of rankup's runtime, the installed one or one that lies beside the script."""
    found = [
        getattr(module, "LEDGER", None)
        for name, module in list(sys.modules.items())
        if name.endswith(".deal")
    ]
    return [one for one in found if hasattr(one, "samples") and hasattr(one, "units")]
