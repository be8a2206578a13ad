"""Things that are fetched by name: each with its key, its place and how it is fetched."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from ...base.errors import UserError
from ...base.files import user_path
from ...base.text import say
from ...base.urls import identity, public
from ...site.caches import Caches
from ...site.needs import Needs, Url
from ..record import Record, key_of_url
from . import hub
from .archive import Archive, fetch_archive
from .hub import Name
from .request import Request, place


@dataclass(frozen=True)
class OnHub:
    """A data set of the Hugging Face hub.

    Attributes:
        texts: the folder, below rankup's own data sets, that gets its splits as plain text; None:
            it is no plain text.
    """

    name: Name
    texts: str | None = None


# Data sets that have a name of ours, at one revision each, so that a result can be repeated. Public
# projects name the commits in their own records of runs; the checksum is that of FastAI.jl's
# registry of data sets.
NAMED: dict[str, OnHub | Archive] = {
    "wikitext-2": OnHub(
        Name(
            "dataset",
            "Salesforce/wikitext",
            "wikitext-2-v1",
            "b08601e04326c79dfdd32d625aee71d232d685c3",
        ),
        "wikitext-2",
    ),
    "xsum": OnHub(
        Name("dataset", "EdinburghNLP/xsum", None, "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9")
    ),
    "imagewoof-320": Archive(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
        "4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d",
        "imagewoof2-320",
        ("train", "val"),
    ),
}


@dataclass(frozen=True)
class Thing:
    """One data set, model or file.

    Attributes:
        key: of its record.
        place: a folder that it will lie in.
        get: brings it here, given an earlier record of it; returns its record, and what a user
            should know: what was left out, how it is loaded.
    """

    key: str
    place: Path
    get: Callable[[Record | None], tuple[Record, list[str]]]


def asked(request: Request) -> Needs:
    """Return what the command line names, in the form that `rankup.toml` has."""
    here = Path.cwd()
    urls = []
    for number, url in enumerate(request.urls):
        sha256 = request.sha256[number].lower() if number < len(request.sha256) else ""
        to = here / user_path(request.to[number], "--to") if number < len(request.to) else None
        urls.append(Url(url, sha256, to))
    return Needs(None, request.datasets, request.models, tuple(urls))


def things(needs: Needs, caches: Caches) -> list[Thing]:
    """Return all of them but the scripts, in the order of data sets, models, files.

    Raises:
        UserError: a name is none, the libraries that fetch it are not installed, or two files would
            become one.
    """
    found = [_dataset(text, caches) for text in dict.fromkeys(needs.datasets)]
    found += [
        _on_hub(f"model:{text}", hub.parse(text, "model"), caches)
        for text in dict.fromkeys(needs.models)
    ]
    targets: dict[str, Url] = {}
    for url in dict.fromkeys(needs.urls):
        target = url.to or place(url.url, caches.own / "files")
        other = targets.setdefault(os.path.realpath(target), url)
        if identity(other.url) != identity(url.url):
            raise UserError(
                f"{public(other.url)} and {public(url.url)} would both be {target}; two files "
                "cannot be one: give each its own (--to)"
            )
        found.append(_url(url, target))
    return found


def _dataset(text: str, caches: Caches) -> Thing:
    key, known = f"dataset:{text}", NAMED.get(text)
    if isinstance(known, Archive):
        archive = known
        return Thing(key, caches.own, lambda _: fetch_archive(key, archive, caches))
    if known is not None:
        return _on_hub(key, known.name, caches, known.texts)
    if "/" not in text and (near := get_close_matches(text, NAMED)):
        # The hub has some names without an owner, too: so this is no more than a hint.
        say(f"{text} is taken for a name on the hub; did you mean {near[0]}?")
    return _on_hub(key, hub.parse(text, "dataset"), caches)


def _on_hub(key: str, name: Name, caches: Caches, texts: str | None = None) -> Thing:
    hub.check_installed(name.kind)
    folder = caches.own / "datasets" / texts if texts else None
    return Thing(key, hub.hub_cache(caches), lambda _: hub.fetch(key, name, caches, folder))


def _url(url: Url, target: Path) -> Thing:
    key = key_of_url(url)

    def get(earlier: Record | None) -> tuple[Record, list[str]]:
        from .download import download  # httpx takes a tenth of a second

        item = download(url.url, target, sha256=url.sha256, replace=url.to is None)
        for known in earlier.items if earlier and not item.sha256 else ():
            if replace(known, sha256="") == item:  # it has been there since it was fetched
                item = known
        # In the cache its place says which URL it is of; elsewhere it may be anything.
        guessed = url.to is not None and not item.sha256
        line = "was there already, and is taken as it is; remove it to fetch it, or give --sha256"
        return Record(key, items=(item,)), [line] if guessed else []

    return Thing(key, target.parent, get)
