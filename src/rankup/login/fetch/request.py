"""The command line of `rankup fetch`, and where its URLs lie."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote_to_bytes

from ...base import urls
from ...base.amounts import size, words
from ...base.errors import UserError
from ...base.files import user_path
from ...base.text import clean, columns
from ...script.source import refuse_notebook
from ...slurm.parse import parse_seconds
from ..record import Item

_LONGEST_NAME = 170  # bytes; a file system takes 255, and digests, `.part.json` or a lock's follow


@dataclass(frozen=True)
class Request:
    """The command line, word for word.

    Attributes:
        sha256, to: belong to `urls` in their order; there may be fewer.
        no_run: read the script instead of running it.
        only_proof: no download, only the start without a network.
        trust: scripts that another user's `rankup.toml` lists may run.
        time: limit of the script's run, as a user writes it.
        memory: its limit in GB (10^9 bytes); None: the default.
        threads: and data-loading workers, of the script.
    """

    script: str | None = None
    args: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    no_run: bool = False
    only_proof: bool = False
    trust: bool = False
    time: str = "1h"
    memory: float | None = None
    threads: int = 4
    as_json: bool = False

    @property
    def seconds(self) -> float:
        """`time` in seconds; UserError where it is no duration."""
        return float(parse_seconds(self.time, "--time"))

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes; UserError where it is no amount."""
        if self.memory is not None and not 0 < self.memory < math.inf:
            raise UserError(f"--memory {self.memory:g} is no amount of memory; give GB: 8")
        return None if self.memory is None else int(self.memory * 1e9)

    @property
    def empty(self) -> bool:
        """True where nothing is named, so that `rankup.toml` says what is meant."""
        return not (self.script or self.datasets or self.models or self.urls)

    def check(self) -> None:
        """Hold the options against each other, before anything is done.

        Raises:
            UserError: the first thing that is wrong.
        """
        self.seconds, self.memory_bytes  # noqa: B018 - they check
        for option, values in (("--sha256", self.sha256), ("--to", self.to)):
            if len(values) > len(self.urls):
                raise UserError(
                    f"{option} belongs to a --url: {len(values)} of the one, "
                    f"{len(self.urls)} of the other; give each its --url, in the same order"
                )
        if self.trust and not self.empty:
            raise UserError("--trust is for what rankup.toml lists: rankup fetch --trust")
        for url in self.urls:
            parse_url(url)
        for value in self.sha256:
            if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
                raise UserError(f"--sha256 {value[:80]!r}: expected 64 hexadecimal digits")
        for text in self.to:
            if user_path(text, "--to").is_dir() or text.endswith("/"):
                raise UserError(f"--to {text} is a folder; name the file in it")
        for option, given in (("--no-run", self.no_run), ("--only-proof", self.only_proof)):
            if given and self.script is None:
                raise UserError(f"{option} needs a script: rankup fetch {option} train.py")
        if self.no_run and self.only_proof:
            raise UserError("--no-run reads the script, --only-proof starts it; give one of them")
        if self.script is not None:
            path = user_path(self.script, "SCRIPT")
            refuse_notebook(path)
            if path.suffix != ".py":
                what = "is a folder" if path.is_dir() else "is no Python script (.py)"
                advice = "by name it is --dataset, --model or --url"
                raise UserError(f"{self.script!r} {what}; give a script to run, or {advice}")
            if not path.is_file():
                raise UserError(f"no script {self.script!r} in {Path.cwd()}")


def table(title: str, items: Sequence[Item], more: str = "") -> list[str]:
    """Return a title with the size of all items, and a line for each, fit for a terminal."""
    total = size(sum(one.bytes for one in items))
    count = words(sum(one.files for one in items), "file", "files")
    rows = [
        (
            clean(one.name),
            size(one.bytes),
            words(one.files, "file", "files"),
            clean(one.path + (f"  from {one.source}" if one.source else "")),
        )
        for one in items
    ]
    return [
        f"{clean(title)}: {total} in {count}{more}",
        *(f"  {line}" for line in (columns(rows, left=(0, -1)) if rows else ())),
    ]


class FetchFailed(Exception):  # noqa: N818 - the fetch failed, the program did what it should
    """Why, and what to do; the message has no query and no credentials of a URL in it."""


def parse_url(url: str) -> SplitResult:
    """Return the parts of an HTTP URL.

    Raises:
        UserError: it is none; neither its query nor its credentials are in the message.
    """
    parts = urls.web_parts(url)
    if parts is None:
        raise UserError(f"--url {urls.public(url)!r} is not {urls.WEB}")
    return parts


def place(url: str, folder: Path) -> Path:
    """Return the path of a file of the web below `folder`: `<host>/<path>`, never outside of it.

    Two URLs share no place, but where they differ in user, password or fragment alone. For what a
    name does not show, since no file could have it or it may be secret, it has a digest.
    """
    parts = parse_url(url)
    words = ("" if parts.scheme == "https" else parts.scheme, parts.hostname, parts.port)
    host = "+".join(str(word) for word in words if word)  # no host has a plus in its name
    path = parts.path.partition(";")[0]
    segments = [_decoded(segment) for segment in path.split("/") if segment]
    names = [_name(word) for word in (host, *segments)]
    if path.endswith("/") or not segments:
        names.append("index")
    # The query says which file it is (`?id=1`), and may hold a token.
    whole = f"{host}{path}?{urls.hidden(url)}"
    quoted = (quote(name, safe="+=,@~", errors="surrogateescape") for name in names[1:])
    if whole != f"{'/'.join((names[0], *quoted))}?":
        stem, dot, suffix = names[-1].partition(".")
        names[-1] = f"{stem}-{urls.digest(whole)}{dot}{suffix}"
    return folder.joinpath(*names)


def _decoded(segment: str) -> str:
    return unquote_to_bytes(segment).decode(errors="surrogateescape")


def _name(word: str) -> str:
    """A file name for a word: short, plain, and neither hidden nor a way up."""
    name = re.sub(r"[^\w.+=,@~-]", "_", word)
    name = f"_{name[1:]}" if name.startswith(".") else name  # our own files are hidden ones
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")
