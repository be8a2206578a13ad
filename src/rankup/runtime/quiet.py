"""`quiet()`: one voice for a script whose every rank prints, draws bars and logs."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import logging
import os
from typing import Any

from .world import is_root_process


def quiet() -> None:
    """Silence the other ranks' `print`, logging below errors, tqdm, TensorBoard and wandb.

    Call once after `setup()`. Rank 0 is untouched, and so is what any rank writes to stderr or
    raises.
    """
    if is_root_process():
        return
    loud = builtins.print

    def silent_print(*values: Any, **options: Any) -> None:
        if options.get("file") is not None:
            loud(*values, **options)

    builtins.print = silent_print
    logging.disable(logging.WARNING)
    os.environ["WANDB_MODE"] = "disabled"
    os.environ["TQDM_DISABLE"] = "1"
    for name in ("tqdm", "tqdm.auto", "tqdm.notebook"):
        _replace(name, "tqdm", _quiet_bar)
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        _replace(name, "SummaryWriter", _Nothing)


class _Nothing:
    """Takes every call and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def _quiet_bar(original: Any) -> Any:
    class QuietBar(original):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

    return QuietBar


def _replace(module_name: str, name: str, make: Any) -> None:
    """Put a silent class where scripts find the loud one, if that package is installed."""
    package = "tensorboard" if "tensorboard" in module_name else module_name.partition(".")[0]
    if module_name == "tensorboardX":
        package = "tensorboardX"
    if importlib.util.find_spec(package) is None:
        return
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    setattr(module, name, make if make is _Nothing else make(getattr(module, name)))
