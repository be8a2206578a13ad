"""Initial weights drawn per parameter, so that every layout starts from the same ones."""

from __future__ import annotations

import torch
from torch import nn

from ..runtime.keys import derive


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Draw each parameter anew by its module's own `reset_parameters`, keyed by (seed, name).

    What a parameter starts from depends on nothing but its name: not on the order of construction,
    nor on what else this process holds. Modules without `reset_parameters` keep what their
    constructor gave them; `build` seeds construction, so that this is equal everywhere too.
    """
    state = torch.get_rng_state()
    drawn: set[int] = set()  # tied parameters keep the draw of their first name
    for prefix, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        own = [
            (name, parameter)
            for name, parameter in module.named_parameters(prefix, recurse=False)
            if id(parameter) not in drawn
        ]
        if reset is None or not own:
            continue
        values = []
        kept = [(p, p.clone()) for p in module.parameters(recurse=False) if id(p) in drawn]
        for name, parameter in own:
            torch.manual_seed(derive(seed, "parameter", name))
            reset()
            values.append(parameter.clone())
        for (_, parameter), value in zip(own, values, strict=True):
            parameter.copy_(value)
            drawn.add(id(parameter))
        for parameter, value in kept:
            parameter.copy_(value)
    torch.set_rng_state(state)
