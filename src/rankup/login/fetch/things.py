"""What is to be fetched by name: each thing with its key, its place and how it is fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ...base.files import user_path
from ...base.urls import public
from ...site.caches import Caches
from ...site.needs import Needs, Url
from ..record import Item, Record, key_of_url
from . import address, hub, named
from .download import download
from .hub_name import Kind, parse
from .hub_run import hub_cache
from .named import OnHub
from .progress import say
from .request import Request
from .result import FetchResult


@dataclass(frozen=True)
class Thing:
    """One data set, model or file.

    Attributes:
        key: of its record.
        place: a folder that it will lie in.
        get: brings it here, given what an earlier record says of it.
    """

    key: str
    place: Path
    get: Callable[[Record | None], FetchResult]


def asked(request: Request) -> Needs:
    """What the command line names, in the form that `rankup.toml` has."""
    here = Path.cwd()
    urls = []
    for number, url in enumerate(request.urls):
        sha256 = request.sha256[number].lower() if number < len(request.sha256) else ""
        to = here / user_path(request.to[number], "--to") if number < len(request.to) else None
        urls.append(Url(url, sha256, to))
    return Needs(None, request.datasets, request.models, tuple(urls))


def things(needs: Needs, caches: Caches) -> list[Thing]:
    """All of them but the scripts, in the order of data sets, models, files.

    Raises:
        UserError: a name is none, or the libraries that fetch it are not installed.
    """
    found = [_dataset(text, caches) for text in dict.fromkeys(needs.datasets)]
    found += [_on_hub(text, "model", caches) for text in dict.fromkeys(needs.models)]
    found += [_url(url, caches) for url in dict.fromkeys(needs.urls)]
    return found


def _dataset(text: str, caches: Caches) -> Thing:
    known = named.NAMED.get(text)
    if known is None:
        return _on_hub(text, "dataset", caches)
    if isinstance(known, OnHub):
        hub.check_installed("dataset")
        on_hub = known
        return Thing(
            f"dataset:{text}", hub_cache(caches), lambda _: named.fetch_on_hub(on_hub, caches)
        )
    archive = known
    return Thing(f"dataset:{text}", caches.own, lambda _: named.fetch_archive(archive, caches))


def _on_hub(text: str, kind: Kind, caches: Caches) -> Thing:
    name = parse(text, kind)
    if kind == "dataset" and "/" not in text and (near := get_close_matches(text, named.NAMED)):
        # The hub has some names without an owner, too: so this is no more than a hint.
        say(f"{text} is taken for a name on the hub; did you mean {near[0]}?")
    hub.check_installed(kind)
    return Thing(f"{kind}:{text}", hub_cache(caches), lambda _: hub.fetch(name, caches))


def _url(url: Url, caches: Caches) -> Thing:
    target = url.to or address.place(url.url, caches.own / "files")

    def get(earlier: Record | None) -> FetchResult:
        done = download(url.url, target, sha256=url.sha256, replace=url.to is None)
        sha256 = done.sha256 or _known(earlier, done.path, done.bytes)
        shown = public(url.url)
        return FetchResult((Item(target.name, shown, str(target), done.bytes, 1, sha256),))

    return Thing(key_of_url(url), target.parent, get)


def _known(earlier: Record | None, path: Path, size: int) -> str:
    """The checksum of a file that has been there since it was fetched."""
    items = earlier.items if earlier else ()
    same = (item.sha256 for item in items if (item.path, item.bytes) == (str(path), size))
    return next(same, "")
