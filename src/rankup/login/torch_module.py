"""Which modules of a site bring a torch, and the torch to ask for in their place."""

from __future__ import annotations

import re

# What the recipes need; fully sharded training alone would go with 2.7.
REQUIREMENT = "torch>=2.8"
# PyTorch (JSC), pytorch (NERSC), PyTorch-bundle, ml-pytorch, cray-python/pytorch; and packages on
# top of it, whose modules load it: torchvision, PyTorch-Lightning, torch-geometric.
_BRINGS = re.compile(r"(?<![a-z])(?:(?:py)?torch|torch(?:vision|audio))(?![a-z])", re.IGNORECASE)
_COMMAND = re.compile(r"(?:^|[;&|]|\bthen\b)\s*(module|ml)\s+([^;&|#<>]*)")
_LOAD = ("load", "add", "try-load", "swap", "switch")
# What else `ml` does; any other word is a module that it loads.
_OTHERS = (
    *("unload", "del", "rm", "purge", "list", "avail", "av", "spider", "show", "use", "unuse"),
    *("save", "restore", "reset", "refresh", "update", "keyword", "whatis", "help", "overview"),
)


def brings_torch(module: str) -> bool:
    """Whether a module of that name, with or without a version, has torch in it or loads it."""
    return _BRINGS.search(module) is not None


def loaded(line: str) -> list[str]:
    """The modules that a line of bash loads, as far as they stand in it by name."""
    found: list[str] = []
    for command, text in _COMMAND.findall(line):
        words = [word.strip("\"'") for word in text.split() if not word.startswith(("-", "$"))]
        if words and words[0] in _LOAD:
            found += words[1:]
        elif command == "ml" and words and words[0] not in _OTHERS:
            found += words
    return found
