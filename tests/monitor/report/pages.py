"""Pages of synthetic runs."""

from __future__ import annotations

from pathlib import Path

from rankup.monitor.billing import cost
from rankup.monitor.diagnose import diagnose, verdict
from rankup.monitor.recording import Recording
from rankup.monitor.report.html import html


def text(recording: Recording) -> str:
    """The page of a recording."""
    found = diagnose(recording)
    return html(recording, found, cost(recording), verdict(recording, found))


def page(recording: Recording, path: Path) -> Path:
    """The page of a recording, as a file."""
    path.write_text(text(recording), encoding="utf-8")
    return path
