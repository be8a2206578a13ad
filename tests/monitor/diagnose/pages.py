"""Pages of findings, of which heading, thresholds and example are written from the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rankup.monitor.diagnose import CODES
from rankup.monitor.thresholds import GIB, LIMITS, MIB

DOCS = Path(__file__).resolve().parents[3] / "docs"
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.MULTILINE)


def path(code: str) -> Path:
    return DOCS / "findings" / f"{code}.md"


def is_the_page(code: str, example: str) -> None:
    """Assert that a page says of its finding what the code does; or write it anew."""
    page = path(code).read_text(encoding="utf-8")
    written = re.sub(r"\A.*", f"# {code}: {CODES[code].title}", page)
    written = re.sub(
        r"(?<=```text\n).*?(?=```)", lambda _: example, written, count=1, flags=re.DOTALL
    )
    have_our_thresholds(path(code), written)


def have_our_thresholds(place: Path, page: str | None = None) -> set[str]:
    """Assert that a page has the values of `LIMITS`, or write them; the names that it has."""
    before = place.read_text(encoding="utf-8")
    page = before if page is None else page
    written = _ROW.sub(lambda row: f"| `{row[1]}` | {_shown(row[1])} |", page)
    if os.environ.get("RANKUP_GOLDEN") == "write":
        place.write_text(written, encoding="utf-8")
    else:
        assert before == written
    return {name for name, _ in _ROW.findall(written)}


def _shown(name: str) -> str:
    """A threshold as a page has it: bytes of memory in MiB or GiB, numbers bare."""
    value = getattr(LIMITS, name)
    if value >= GIB:
        return f"{value / GIB:g} GiB"
    return f"{value / MIB:g} MiB" if value >= 100 * MIB else f"{value:,.6g}"
