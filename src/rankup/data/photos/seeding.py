"""Transforms that draw from the global random generators, as torchvision's do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...base.errors import UserError


@dataclass(frozen=True)
class Seeded:
    """See `seeded`."""

    function: Callable[[Any], Any]
    releases_gil: bool = False

    def __call__(self, data: Any, rng: np.random.Generator) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "seeded(…) sets the random generators of the whole process, and was called in a "
                "thread beside the training loop: give the Loader kind='processes', or workers=0"
            )
        seeds = rng.integers(0, 2**32, 3).tolist()
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(seeds[0])
        np.random.seed(seeds[1])
        # Not torch.manual_seed, which sets the GPU's generator, too.
        torch.default_generator.manual_seed(seeds[2])
        try:
            return self.function(data)
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


def seeded(function: Callable[[Any], Any]) -> Seeded:
    """A transform of a function that draws from the generators of torch, numpy and random.

    They are seeded by each sample's own random numbers before, and are as they were after. So
    transforms of torchvision make the same sample on every rank and in every worker of torch's own
    DataLoader:

        PackedDataset(path, "train", seeded(lambda data: augment(to_image(decode(data)))))

    A `Loader` without threads does that by itself for every plain function. The generators belong
    to the process: in threads this is an error, and a Loader with kind="auto" takes processes.

    Args:
        function: of a sample's bytes; it travels to worker processes, where spawn pickles it.

    Raises:
        UserError: it is called in another thread than the main one.
    """
    return Seeded(function)
