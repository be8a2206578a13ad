"""Files in scratch that are near their deletion: a sample of what runs and fetches have left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.findings import Finding
from . import codes
from .asking import Clock

_MOST = 2000
_NEAR_DAYS = 14
_DAY = 86400.0


@dataclass(frozen=True)
class Unused:
    """A file, and for how many days nobody has read or written it."""

    path: Path
    days: float


def sample(
    places: Iterable[Path], scratch: Path, clock: Clock, now: float, most: int = _MOST
) -> list[Unused]:
    """Files of `places` that lie in `scratch`, some of each; bounded in number and in time.

    Args:
        places: files and folders; of folders the content counts.
        now: unix seconds.
        most: so many files at most, and one for each further place.
    """
    inside = [one for one in map(Path, map(os.path.realpath, places)) if _in(one, scratch)]
    walks = [_files(place) for place in dict.fromkeys(inside)]
    found: dict[Path, Unused] = {}
    # In turns, so that one large folder does not hide the others.
    while walks and len(found) < most and clock.left() > 0.2:
        for walk in list(walks):
            path = next(walk, None)
            if path is None:
                walks.remove(walk)
                continue
            try:
                said = path.stat()
            except OSError:
                continue
            used = max(said.st_atime, said.st_mtime)
            found[path] = Unused(path, max(0.0, (now - used) / _DAY))
    return list(found.values())


def check_purge(files: Sequence[Unused], scratch: Path, days: int) -> list[Finding]:
    """How near the oldest of the files are to their deletion after `days` days."""
    if not files:
        return [
            Finding(codes.PURGE, "ok", "scratch", f"{scratch}: files unused for {days} days go")
        ]
    near = sorted((one for one in files if one.days > days - _NEAR_DAYS), key=lambda o: -o.days)
    looked = f"{len(files)} files of this project were looked at"
    if not near:
        oldest = max(files, key=lambda one: one.days)
        return [
            Finding(
                codes.PURGE,
                "ok",
                "scratch",
                f"files unused for {days} days go; {looked}, the oldest is unused for "
                f"{oldest.days:.0f}",
            )
        ]
    first = near[0]
    left = days - first.days
    when = f"goes in {left:.0f} days" if left > 0 else "may be gone any day"
    return [
        Finding(
            codes.PURGE,
            "warning",
            "scratch",
            f"{len(near)} files are unused for over {days - _NEAR_DAYS} days, and go after {days}: "
            f"{first.path} {when} ({looked})",
            "copy to $DATA or $PROJECT what you want to keep; `rankup fetch` brings back the rest",
        )
    ]


def today() -> float:
    """Unix seconds."""
    return time.time()


def _in(path: Path, scratch: Path) -> bool:
    return path.is_relative_to(os.path.realpath(scratch))


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, inner, names in os.walk(place):
        inner.sort()
        for name in names:
            yield Path(folder, name)
