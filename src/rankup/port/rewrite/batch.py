"""What a batch size means on several GPUs, in words; nothing is rescaled."""

from __future__ import annotations

import math

from ...script.flow import argument
from .context import Context
from .expressions import integer, number

_EXAMPLE = 4


def effective(context: Context) -> None:
    """Say what the effective batch is, and what two rules would make of the learning rate."""
    script = context.script
    if context.options.batch == "global":
        return
    for call in context.training.loader_calls:
        size = argument(call, "batch_size", 1)
        if size is None:
            continue
        text = script.code(size)
        whole = f" ({int(text) * _EXAMPLE} on {_EXAMPLE})" if integer(size) else ""
        context.leave(
            call,
            f"the effective batch is {text} times the number of GPUs{whole}: fewer steps per epoch",
            comment=False,
        )
        break
    rates = []
    for call in context.training.optimizers:
        rate = argument(call, "lr", 1)
        text = script.code(rate) if rate is not None else "lr"
        numbers = ""
        if rate is not None and number(rate):
            value = float(text)
            numbers = (
                f"; on {_EXAMPLE} GPUs {value * _EXAMPLE:g} and {value * math.sqrt(_EXAMPLE):g}"
            )
        rates.append((call, text, numbers))
    for call, text, numbers in rates:
        context.leave(
            call,
            f"learning rate unchanged. The linear rule (SGD, with warm-up) would make it {text} x "
            f"GPUs, the square-root rule (Adam) {text} x sqrt(GPUs){numbers}",
            comment=False,
        )
