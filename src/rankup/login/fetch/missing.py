"""Why a start without a network failed: what it wanted, where, and what would help."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .events import Event, of
from .explain import outcome, users_frames
from .sources import made, same_name
from .supervise import Ended, Limits

_OFFLINE = re.compile(
    r"LocalEntryNotFound|OfflineModeIsEnabled|offline|couldn't connect to|couldn't reach"
    r"|outgoing traffic has been disabled|in the (?:local|disk) cache",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'([^'\n]+)'\s*$")


@dataclass(frozen=True)
class First:
    """What the start with a network, just before, has shown.

    Attributes:
        reached: it came to training.
        files: what it has left.
    """

    events: Sequence[Event]
    reached: bool
    files: Collection[str]


def wanted(events: Sequence[Event]) -> list[str]:
    """What a start without a network asked the network for, and where in the user's code.

    The last of each address, since only what came last can have ended it.
    """
    return [f"{address} ({where})" if where else address for address, where in _wanted(events)]


def _wanted(events: Sequence[Event]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    urls = [event.text("url") for event in of(events, "url")]
    named = {urlsplit(url).hostname for url in urls}
    for event in of(events, "url", "connect"):
        host, port = event.text("host"), event.number("port")
        address = event.text("url") or (f"{host}:{port}" if port else host)
        if address and host not in named:
            found.pop(address, None)
            found[address] = event.where
    # Of other programs nothing is seen but the URLs that they were given.
    last = next(iter(reversed(of(events, "spawn"))), None)
    for word in last.texts("words") if last is not None else ():
        if "://" in word:
            found.setdefault(word, last.where if last is not None else "")
    return list(found.items())


def missing(
    events: Sequence[Event],
    ended: Ended,
    limits: Limits,
    first: First | None,
    folder: Path,
    most: int = 5,
) -> list[str]:
    """Why a start without a network failed: its own error, and what it asked the network for.

    Args:
        first: the start with a network of the same command; None where there was none.
        folder: where it ran.
    """
    lines: list[str] = []
    end = next((event for event in reversed(of(events, "end")) if event.text("type")), None)
    asked = _wanted(events)
    if end is not None and end.text("type") != "SystemExit":
        message = next(iter(end.text("message").strip().splitlines()), "")
        place = _raised_at(end.text("error"))
        lines.append(f"{end.text('type')}{place}: {message}".rstrip(": "))
    else:
        lines += outcome(events, ended, limits).lines
    if asked:
        lines += [f"it wanted {one}" for one in wanted(events)[-most:]]
        lines += _at_every_start(asked[-1][0], first)
    elif reason := _local(end, folder):
        lines.append(reason)
    elif not _OFFLINE.search(" ".join(lines)):
        lines.append(_otherwise(first))
    return lines


def _at_every_start(url: str, first: First | None) -> list[str]:
    """Advice for a script that does not look whether the file is there already."""
    if first is None or not first.reached:
        return []
    for one in made(first.events):
        if one.url == url and one.path in first.files and same_name(one.path, url):
            path = os.path.relpath(one.path)
            shown = one.path if path.startswith("..") else path
            return [f"it downloads at every start: let it look for {shown} first"]
    return []


def _local(end: Event | None, folder: Path) -> str:
    """What an error says of files that has nothing to do with the network."""
    if end is None:
        return ""
    if end.text("type") == "FileExistsError":
        return "it starts only where this is not there: a job will not start either"
    name = _QUOTED.search(end.text("message"))
    if end.text("type") != "FileNotFoundError" or name is None:
        return ""
    relative = "" if os.path.isabs(name[1]) else f", relative to {folder}"
    return f"{name[1]} is not here{relative}"


def _otherwise(first: First | None) -> str:
    if first is not None and first.reached:
        return "it asked for nothing from the network: the second start went another way"
    return "it asked for nothing from the network: that is not why it failed"


def _raised_at(error: str) -> str:
    frames = users_frames(error)
    return f" at {frames[-1]}" if frames else ""
