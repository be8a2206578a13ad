"""Stands in for wandb: see tools/stand_ins/README.md."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_files: list[Path] = []  # where the run that was begun writes


def init(project: str = "", dir: str | os.PathLike[str] = ".", **_: Any) -> None:
    """Begin a file in `dir`."""
    if os.environ.get("WANDB_MODE") != "disabled":
        _files[:] = [Path(dir, "wandb.txt")]
        _files[0].write_text(f"{project}\n", encoding="utf-8")


def log(values: dict[str, Any], step: int | None = None) -> None:
    """A line for a step."""
    for file in _files:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{step} {json.dumps(sorted(values))}\n")


def finish() -> None:
    """The end of the run."""
    _files.clear()
