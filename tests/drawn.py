"""The time lines that the docs' pictures are drawn from."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

_FILE = Path(__file__).resolve().parents[1] / "docs" / "pipelines.py"


@cache
def pipelines() -> ModuleType:
    """`docs/pipelines.py`: when each rank does what, all as soon as what it needs is there."""
    spec = importlib.util.spec_from_file_location("drawn_pipelines", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
