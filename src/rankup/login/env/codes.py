"""The codes of `rankup env check`. They are stable; `docs/findings/CODE.md` explains each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FINISHED = "RK540"
WORKS = "RK541"
AGE = "RK542"
LOCK = "RK543"
CONFLICTS = "RK544"
TORCH = "RK545"
REQUIREMENTS = "RK546"

TITLES: Mapping[str, str] = MappingProxyType(
    {
        FINISHED: "the environment is there and finished",
        WORKS: "the environment works where it lies",
        AGE: "the environment is as old as its files",
        LOCK: "the lock fits the requirements",
        CONFLICTS: "packages that do not go together",
        TORCH: "one torch, or two",
        REQUIREMENTS: "each requirement is installed",
    }
)
