"""What a script fetches after its first step: in a validation, at the end of an epoch.

A start that ends at the first forward does not come by there. Reading the script finds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...base.errors import UserError
from ...base.urls import public
from ...sandbox import events as journal
from ...sandbox.events import Event
from ...script.downloads import Download, read
from ..record import Item
from .came import same_name


def unreached(
    script: Path,
    args: tuple[str, ...],
    events: Sequence[Event],
    items: Iterable[Item],
    caches: Iterable[Path],
) -> list[str]:
    """What the script would fetch, no start has asked for, and is not here; one line each.

    Only what is known by its name: a URL, or a data set or model of the hub.

    Args:
        events: of all starts.
        caches: where the hub's library may keep its repositories.
    """
    try:
        found = read(script, args).downloads
    except UserError:
        return []  # it did start: what reading makes of it is no news
    urls = {event.text("url") for event in journal.of(events, "url")}
    urls |= {word for event in journal.of(events, "spawn") for word in event.texts("words")}
    items = tuple(items)
    hubs = [path for cache in caches for path in (cache, cache / "hub")]
    missed = [
        one for one in found if one.known and one.name and not _is_here(one, urls, items, hubs)
    ]
    lines = (f"{_place(one, script)}: {one.how} of {_name(one)}" for one in missed)
    return list(dict.fromkeys(lines))


def _is_here(
    one: Download, urls: Iterable[str], items: Sequence[Item], hubs: Sequence[Path]
) -> bool:
    name = one.name or ""
    if one.what == "url":
        url = public(name)
        had = any(item.source == url or same_name(item.path, url) for item in items)
        return had or url in urls or bool(one.to and os.path.exists(one.to))
    if one.what not in ("dataset", "model") or os.path.exists(name):
        return True
    end = f"--{name.replace('/', '--')}"
    asked = any(f"/{name}/" in f"{url}/" for url in urls)
    return asked or any(path.name.endswith(end) for hub in hubs for path in hub.glob("*--*"))


def _name(one: Download) -> str:
    return public(one.name or "") if one.what == "url" else one.wanted


def _place(one: Download, script: Path) -> str:
    return f"{os.path.relpath(one.file.resolve(), script.parent)}:{one.line}"
