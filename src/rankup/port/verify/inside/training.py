"""Records losses, gradients and parameters of the training, and ends the loops that train.

What stands behind a training loop, a last evaluation, a last save, runs as always. So it is the
loops that are cut, in the syntax tree, as the script and the modules beside it are compiled.
"""

from __future__ import annotations

import ast
import builtins
import gc
import math
import os
import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from ....sandbox.inside.devices import change_arguments
from ....sandbox.inside.hooks import replaces
from ..protocol import EPOCHS, STEPS, Run
from .draws import Progress

_EACH, _GO = "__rankup_each__", "__rankup_go__"
_NO_GRADIENTS = {"no_grad", "inference_mode"}
_SETS_GRADIENTS = "set_grad_enabled"
_DIRECTIONS, _PROJECTED = 4, 1 << 16


class Steps:
    """Watches the training of one rank.

    Args:
        initial: folder for the values that the original's optimizers began with.
    """

    def __init__(self, run: Run, initial: str, progress: Progress) -> None:
        self._run, self._initial = run, initial
        self._progress, self._journal = progress, progress.journal
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count = 0
        # Of each model the values it had at the first step.
        self._first: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()

    def install(self, torch: Any) -> None:
        """All of torch."""
        self._watch_backward(torch.autograd)
        torch.nn.modules.module.register_module_forward_hook(self._forward)
        module = sys.modules["torch.optim.optimizer"]
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        self._watch_beginning(torch, module.Optimizer)
        self._watch_wrapping(torch.nn.parallel.DistributedDataParallel)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                change_arguments(owner, name, self._clipped)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        change_arguments(plateau, "step", self._decided)

    def finished(self) -> None:
        """Record the values of all models that are left, averaged copies included."""
        gc.collect()  # what nobody holds any more is not left
        models = list(_models())
        found = [
            (type(one).__name__, _checksum([*one.parameters(), *one.buffers()])) for one in models
        ]
        self._journal.tell("models", found=sorted(found))
        for one in models:
            if (first := self._first.get(one)) is not None:
                shapes = repr([tuple(each.shape) for each in one.parameters()])
                name, last = type(one).__name__, _projected(one)
                self._journal.tell("moved", model=name, shapes=shapes, first=first, last=last)

    def _watch_backward(self, module: Any) -> None:
        @replaces(module, "backward")
        def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            root = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
            if type(getattr(root, "grad_fn", None)).__name__ == "_NoGradientBackward":
                return original(tensors, *args, **kwargs)  # rankup's, for unused parameters
            fields = {**self._weights(), "aside": self._progress.aside(root)}
            # Behind it the value may be that of the whole batch, which `rankup.backward` puts in.
            value = float(root.detach()) if getattr(root, "numel", int)() == 1 else None
            result = original(tensors, *args, **kwargs)
            self._progress.backwards += 1
            fields["loss"] = value if value is None or math.isfinite(value) else str(value)
            self._journal.tell("backward", **fields, where=self._journal.where())
            return result

    def _forward(self, module: Any, given: Any, output: Any) -> None:
        parts = list(output.values()) if isinstance(output, dict) else output
        parts = parts if isinstance(parts, list | tuple) else [parts]
        nodes = [getattr(one, "grad_fn", None) for one in parts]
        if self._progress.drawings:
            self._progress.drawings[-1][1].extend(one for one in nodes if one is not None)

    def _weights(self) -> dict[str, Any]:
        samples, units, idle = self._progress.drawn, None, False
        for ledger in _ledgers():
            if ledger.samples is not None and (samples == 0 or ledger.samples[0] == 0):
                # What was drawn only keeps this rank in step, or a function has drawn it.
                samples = ledger.samples[0]
                idle = samples == 0
            units = ledger.units if ledger.units is not None else units
        return {"samples": samples, "units": units, "idle": idle}

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        initial = optimizer.__dict__.pop("_rankup_initial", None)
        if initial is not None:
            self._journal.tell("initial", optimizer=optimizer._rankup_number, sums=initial)
        if not self._first:
            self._first.update({one: _projected(one) for one in _models()})
        optimizer._rankup_gradient = _gradient(_parameters(optimizer))

    def _clipped(self, given: dict[str, Any]) -> None:
        """Behind it a gradient that is N times too long is right, as long as it is clipped."""
        parameters = given["parameters"]
        alone = hasattr(parameters, "grad")
        given["parameters"] = parameters = [parameters] if alone else list(parameters)
        norm = _gradient(parameters)
        if norm is not None:
            self._journal.tell("clip", gradient=norm if math.isfinite(norm) else str(norm))

    def _decided(self, given: dict[str, Any]) -> None:
        """The learning rate is lowered by a number of this rank, after more epochs than here."""
        self._journal.tell("plateau", value=float(given["metrics"]), where=self._journal.where())

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        norm = getattr(optimizer, "_rankup_gradient", None)
        if norm is None:
            return
        self._progress.steps += 1
        number = getattr(optimizer, "_rankup_number", -1)
        # A checksum of numbers that are not finite may differ although all is as bad everywhere.
        shown = norm if math.isfinite(norm) else str(norm)
        sums = _checksum(_parameters(optimizer))
        options = [
            (name, float(value))
            for group in optimizer.param_groups
            for name, value in group.items()
            if name in ("lr", "weight_decay", "momentum")
        ]
        fields = {"optimizer": number, "gradient": shown, "parameters": sums}
        self._journal.tell("step", **fields, options=options)

    def _watch_beginning(self, torch: Any, kind: Any) -> None:
        @replaces(kind, "__init__")
        def init(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not hasattr(optimizer, "_rankup_number"):
                optimizer._rankup_number = self._count
                self._count += 1
                self._optimizers.add(optimizer)
                optimizer._rankup_initial = [_checksum([one]) for one in _parameters(optimizer)]
                if not self._run.free:
                    self._begin_as_original(torch, optimizer)

    def _watch_wrapping(self, kind: Any) -> None:
        """Values that a wrapper makes equal after the optimizer was made need not be so before."""

        @replaces(kind, "__init__")
        def init(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            within = {id(one) for one in wrapper.module.parameters()}
            for optimizer in list(self._optimizers):
                if within & {id(one) for one in _parameters(optimizer)}:
                    optimizer.__dict__.pop("_rankup_initial", None)

    def _begin_as_original(self, torch: Any, optimizer: Any) -> None:
        """Give the original's initial values to all, so that what follows can be compared."""
        name = f"initial-{self._run.against}-{optimizer._rankup_number}.pt"
        path = os.path.join(self._initial, name)
        parameters = _parameters(optimizer)
        if not self._run.world:
            torch.save([_whole(one.detach()).clone() for one in parameters], path)
            return
        if not os.path.exists(path):
            return
        values = torch.load(path, weights_only=True)
        if [one.shape for one in values] != [one.shape for one in parameters]:
            self._progress.note(
                "the optimizers of the two scripts have other parameters: each begins by itself"
            )
            return
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                if type(parameter.data).__name__ != "DTensor":
                    parameter.copy_(value)


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _gradient(parameters: Iterable[Any]) -> float | None:
    """Return the length of a gradient, None where there is none."""
    total, seen = 0.0, 0
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = _whole(parameter.grad)
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            total += float(gradient.double().pow(2).sum())
            seen += 1
    return math.sqrt(total) if seen else None


def _models() -> Iterator[Any]:
    """Yield all modules that are no other's, but for those with only the shapes of values."""
    import torch

    modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
    children = {id(child) for module in modules for child in module.children()}
    for module in modules:
        first = next(module.parameters(), None)
        if id(module) not in children and first is not None and not first.is_meta:
            yield module


def _projected(module: Any) -> list[float]:
    """Return a model's parameters, the first of each tensor, in a few directions."""
    import torch

    found = torch.zeros(_DIRECTIONS, dtype=torch.float64)
    for number, parameter in enumerate(module.parameters()):
        if parameter.is_meta or parameter.is_sparse or hasattr(parameter, "materialize"):
            continue
        values = _whole(parameter.detach()).cpu().reshape(-1)[:_PROJECTED].double()
        places = torch.arange(1.0, len(values) + 1, dtype=torch.float64) + 7 * number
        for direction in range(_DIRECTIONS):
            found[direction] += (values * torch.cos(places * (direction + 1))).sum()
    return list(found.tolist())


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _checksum(tensors: Iterable[Any]) -> int:
    import torch

    total = 0
    for tensor in tensors:
        if tensor.is_meta or tensor.is_sparse or hasattr(tensor, "materialize"):
            continue
        value = _whole(tensor.detach()).cpu().contiguous()
        total = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy(), total)
    return total


def _ledgers() -> list[Any]:
    """Return those of rankup's runtime, the installed one or one that lies beside the script."""
    found = [
        getattr(module, "CONTEXT", None)
        for name, module in list(sys.modules.items())
        if "runtime" in name or "rankup" in name
    ]
    return [one for one in found if hasattr(one, "samples") and hasattr(one, "units")]


class _Cut(ast.NodeTransformer):
    """Puts the calls in; line numbers stay.

    Attributes:
        loops: `while` loops so far.
        evaluations: lines of the outermost `for` loops without gradients.
    """

    def __init__(self, first: int, name: str) -> None:
        self.loops, self._name = first, name
        self.evaluations: list[str] = []
        self._gradients = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before = self._gradients
        self._gradients = not any(map(_turns_off, node.decorator_list))
        self.generic_visit(node)
        self._gradients = before
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        before = self._gradients
        self._gradients &= not any(_turns_off(item.context_expr) for item in node.items)
        self.generic_visit(node)
        self._gradients = before
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """`torch.set_grad_enabled(False)` holds from there to the end of its function."""
        given = _set_to(node.value)
        if given is not None:
            self._gradients = given
        self.generic_visit(node)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        before, arguments = self._gradients, [node.iter]
        if not before:
            self._gradients = True  # only the outermost
            place = f"{self._name}:{node.lineno}"
            self.evaluations.append(place)
            arguments.append(ast.Constant(place))
        self.generic_visit(node)
        self._gradients = before
        arguments[0] = node.iter
        node.iter = ast.copy_location(_call(_EACH, arguments), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        self.loops += 1
        go = _call(_GO, [ast.Constant(self.loops)])
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, go]), node.test)
        return node


def _turns_off(node: ast.expr) -> bool:
    function = node.func if isinstance(node, ast.Call) else node
    return _last_name(function) in _NO_GRADIENTS or _set_to(node) is False


def _set_to(node: ast.expr) -> bool | None:
    """What `set_grad_enabled(False)` sets; None of anything else."""
    if not isinstance(node, ast.Call) or _last_name(node.func) != _SETS_GRADIENTS:
        return None
    given = [*node.args, *(one.value for one in node.keywords)][:1]
    value = given[0].value if given and isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, bool) else None


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


class Loops:
    """Compiles the user's files with their loops cut, and is what these call.

    Args:
        folder: whose files are the user's, absolute and without links.
    """

    def __init__(self, folder: str, progress: Progress) -> None:
        self._folder = folder + "/"
        self._progress = progress
        self._entered: dict[int, tuple[int, int]] = {}
        self._count = 0
        self.unreached: set[str] = set()  # places of loops without gradients
        vars(builtins).update({_EACH: self.each, _GO: self.go})

    def compile(self, source: bytes | str, path: str, *, script: bool = False) -> CodeType:
        """The code of a file; the evaluations of the script itself are known as unreached."""
        cut = _Cut(self._count, os.path.basename(path))
        tree = ast.fix_missing_locations(cut.visit(ast.parse(source, path)))
        self._count = cut.loops
        if script:
            self.unreached.update(cut.evaluations)
        return compile(tree, path, "exec", dont_inherit=True)

    def install(self) -> None:
        """Do so with what is imported from the folder as well, but a runtime lying there."""

        @replaces(SourceFileLoader, "source_to_code")
        def compiled(original: Any, loader: Any, data: Any, path: Any, **options: Any) -> Any:
            name = str(path)
            if name.startswith(self._folder) and "rankup" not in name[len(self._folder) :]:
                return self.compile(data, name)
            return original(loader, data, path, **options)

        sys.dont_write_bytecode = True

    def each(self, items: Iterable[Any], place: str = "") -> Iterator[Any]:
        """The items, until enough has been trained since the first one."""
        began = self._now()
        self.unreached.discard(place)
        rounds = getattr(items, "iterable", items)  # of a progress bar
        for item in items:
            yield item
            if self._enough(began):
                if isinstance(rounds, range):
                    journal = self._progress.journal
                    journal.tell("rounds", number=len(rounds), where=journal.where())
                return
        self._progress.behind()

    def go(self, loop: int) -> bool:
        """True while a `while` loop, known by its number, goes on."""
        began = self._entered.setdefault(loop, self._now())
        if self._enough(began):
            del self._entered[loop]
            return False
        return True

    def _now(self) -> tuple[int, int]:
        return self._progress.epochs, self._progress.steps

    def _enough(self, began: tuple[int, int]) -> bool:
        epochs, steps = self._now()
        return epochs - began[0] >= EPOCHS or steps - began[1] >= STEPS
