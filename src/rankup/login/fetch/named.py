"""Data sets that rankup knows by name, at one revision each, so that a result can be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...base import lock
from ...base.urls import public
from ...site.caches import Caches
from ..record import Item
from . import address, hub, progress, unpack
from .download import Patience, download
from .hub_name import Name
from .result import FetchFailed, FetchResult


@dataclass(frozen=True)
class OnHub:
    """A data set of the Hugging Face hub.

    Attributes:
        texts: the folder, below rankup's own data sets, that gets its splits as plain text; None:
            it is no plain text.
    """

    name: Name
    texts: str | None = None


@dataclass(frozen=True)
class Archive:
    """A tar archive of the web.

    Attributes:
        folder: what it unpacks to, there and here.
        parts: folders that must be in it.
    """

    url: str
    sha256: str
    folder: str
    parts: tuple[str, ...]


# Public projects name the commits in their own records of runs; the checksum is that of FastAI.jl's
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


def fetch_on_hub(
    known: OnHub, caches: Caches, say: Callable[[str], None] = progress.say
) -> FetchResult:
    """Fetch it as any data set of the hub, and write its text where there is one.

    Raises:
        FetchFailed: as `hub.fetch`.
    """
    if known.texts is None:
        return hub.fetch(known.name, caches, say=say)
    folder = caches.own / "datasets" / known.texts
    came = hub.fetch(known.name, caches, texts=folder, say=say)
    files = [folder / f"{part}.txt" for part in ("train", "valid", "test")]
    texts = tuple(
        Item(file.name, known.name.page, str(file), file.stat().st_size) for file in files
    )
    words = " ".join(f"--{file.stem} {file}" for file in files)
    lines = (*came.lines, f"as plain text: rankup run language-model {words}")
    return replace(came, items=came.items + texts, lines=lines)


def fetch_archive(
    known: Archive,
    caches: Caches,
    say: Callable[[str], None] = progress.say,
    patience: Patience | None = None,
) -> FetchResult:
    """Download and unpack; the archive does not stay, it would only be there twice.

    Raises:
        FetchFailed: as `download` and `unpack`, or it holds something else.
        OSError: the folder cannot be written to.
    """
    patience = patience or Patience()
    folder = caches.own / "datasets" / known.folder
    found = _unpacked(folder, known)
    if found is None:
        with lock.held(folder, say, patience.lock, doing="fetching") as held:
            found = _unpacked(folder, known)
            if found is None:
                archive = address.place(known.url, caches.own / "files")
                download(
                    known.url,
                    archive,
                    sha256=known.sha256,
                    replace=True,
                    patience=patience,
                    say=say,
                )
                found = unpack.unpack(archive, folder, known.parts, held, known.sha256)
                archive.unlink(missing_ok=True)
    item = Item(
        known.folder, public(known.url), str(folder), found.bytes, found.files, known.sha256
    )
    return FetchResult((item,), lines=(f"in it: {', '.join(known.parts)}",))


def _unpacked(folder: Path, known: Archive) -> unpack.Unpacked | None:
    """What lies there, where it is whole."""
    try:
        said = json.loads((folder / unpack.MARKER).read_text(encoding="utf-8"))
        found = unpack.Unpacked(said["files"], said["bytes"])
        whole = said["sha256"] == known.sha256
    except FileNotFoundError:
        if not folder.exists():
            return None
        raise FetchFailed(
            f"{folder} is there and was not made by rankup; remove it, or move it away"
        ) from None
    except (OSError, ValueError, TypeError, KeyError):
        raise FetchFailed(f"{folder}: {unpack.MARKER} is damaged; remove the folder") from None
    if not whole or not all((folder / part).is_dir() for part in known.parts):
        raise FetchFailed(f"{folder} is no longer what was unpacked there; remove it")
    return found
