"""A SummaryWriter whose events are lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class SummaryWriter:
    """Writes `events.txt` in its folder."""

    def __init__(self, log_dir: str | None = None, comment: str = "", **_: Any) -> None:
        folder = Path(log_dir or f"runs/one{comment}")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "events.txt"
        self._file.touch()

    def _add(self, tag: str, values: Any = None, global_step: Any = None, *_: Any) -> None:
        with self._file.open("a", encoding="utf-8") as out:
            out.write(f"{tag} {global_step}\n")

    def add_scalar(self, tag: str, *values: Any) -> None:
        """A line."""
        self._add(tag, *values)

    def add_histogram(self, tag: str, *values: Any) -> None:
        """A line."""
        self._add(tag, *values)

    def add_images(self, tag: str, *values: Any) -> None:
        """A line."""
        self._add(tag, *values)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is open."""


FileWriter = SummaryWriter
