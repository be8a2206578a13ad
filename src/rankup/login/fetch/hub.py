"""Models and data sets of the Hugging Face hub, as its own libraries will look for them offline.

These libraries are imported by child processes (`hub_child.py`), each of which does one task and
ends with its parent.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...base import lock
from ...base.amounts import some
from ...base.errors import UserError
from ...base.files import write_json
from ...base.processes import python
from ...base.text import say
from ...base.urls import public
from ...sandbox import copies
from ...sandbox.copies import Sandbox
from ...sandbox.environment import child_environment, offline
from ...sandbox.namespace import command, refusal
from ...sandbox.watch import Interrupt, Limits, watch
from ...site.caches import Caches
from ..record import Item, Proof, Record
from .request import FetchFailed

Kind = Literal["model", "dataset"]
_WORD = r"\w[\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_WORD}(?:/{_WORD})?)(?::(?P<config>[^:@]+))?(?:@(?P<rev>[^\s@]+))?")
_LIBRARIES: dict[Kind, tuple[str, ...]] = {
    "model": ("huggingface_hub",),
    "dataset": ("huggingface_hub", "datasets"),
}
_CACHE_VARIABLES = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
_OFFLINE = offline(("datasets", "transformers"))
TASK, ANSWER = "task.json", "answer.json"  # of a child, in a folder of its own


@dataclass(frozen=True)
class Name:
    """A repository of the hub.

    Attributes:
        config: of a data set; None: its only or default one.
        revision: branch, tag or commit; None: the newest of the main branch.
    """

    kind: Kind
    repo: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        return f"{self.repo}{config}" + (f"@{self.revision}" if self.revision else "")

    @property
    def page(self) -> str:
        """The page about it."""
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        below = "datasets/" if self.kind == "dataset" else ""
        return public(f"{endpoint.rstrip('/')}/{below}{self.repo}")


def parse(text: str, kind: Kind) -> Name:
    """Read `NAME[:config][@revision]` of a data set, `NAME[@revision]` of a model.

    Raises:
        UserError: it is neither.
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in match["repo"] or (kind == "model" and match["config"]):
        form = "NAME[:config][@revision]" if kind == "dataset" else "NAME[@revision]"
        raise UserError(
            f"--{kind} {text!r}: expected {form} with a name as on the hub: org/name; "
            "files and folders need no fetch"
        )
    return Name(kind, match["repo"], match["config"], match["rev"])


def check_installed(kind: Kind) -> None:
    """Raise UserError where the libraries of the extra `hf` are not here."""
    missing = [name for name in _LIBRARIES[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--{kind} needs {' and '.join(missing)}, not installed for {sys.executable}: "
            "pip install 'rankup[hf]'"
        )


def hub_cache(caches: Caches) -> Path:
    """Return the hub's folder of repositories."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if text := caches.refining.get(variable):
            return Path(text).expanduser()
    home = next(cache.path for cache in caches.entries if cache.variable == "HF_HOME")
    return home / "hub"


def fetch(
    key: str, name: Name, caches: Caches, texts: Path | None = None
) -> tuple[Record, list[str]]:
    """Bring a repository into the hub's own cache, and load it once more without a network.

    Args:
        texts: folder for the splits of a data set of lines, as plain text.

    Raises:
        FetchFailed: it did not come. Where it came and cannot be loaded, `proof` says so.
    """
    cache = hub_cache(caches)
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{name.kind}s--{name.repo.replace('/', '--')}"
    task = {**asdict(name), "folder": str(folder), "texts": texts and str(texts), "prove": False}
    # One at a time for a repository: the libraries' own locks are flocks, which many parallel
    # file systems do not have.
    with lock.held(folder, say, doing="fetching") as held:
        done = _run_child(name, caches, held, task)
        blocked = bool(refusal())
        proof = {**task, "prove": True, "block": blocked, "files": done.get("files")}
        proved: Proof = "blocked" if blocked else "namespace"
        note = ""
        try:
            _run_child(name, caches, held, proof)
        except FetchFailed as failure:
            held.check()  # else it is no word on what is here
            proved, note = "failed", str(failure)
    moved = caches.variables()
    record = Record(
        key,
        items=_items(name, folder, done),
        variables={one: moved[one] for one in moved if one.startswith(_CACHE_VARIABLES)},
        offline=_OFFLINE,
        proof=proved,
        note=note,
    )
    return record, _advice(name, done)


def _items(name: Name, folder: Path, done: Mapping[str, Any]) -> tuple[Item, ...]:
    snapshot = folder / "snapshots" / done["revision"]
    if name.kind == "model":
        called, places = name.repo, {snapshot: [snapshot / file for file in done["files"]]}
    else:
        # What was loaded may point to files in the snapshot (images, sound).
        folders = [*map(Path, done["folders"]), *([snapshot] if snapshot.is_dir() else [])]
        called, places = str(name), {one: _files_in(one) for one in folders}
    found = [
        Item(
            called, name.page, str(place), sum(map(_size, files)), len(files), "", done["revision"]
        )
        for place, files in places.items()
    ]
    texts = [Path(text) for text in done.get("texts", ())]
    return (*found, *(Item(text.name, name.page, str(text), _size(text)) for text in texts))


def _advice(name: Name, done: Mapping[str, Any]) -> list[str]:
    lines = []
    if skipped := done.get("skipped"):
        lines.append(f"passed over, other formats of the same weights: {some(skipped)}")
    if splits := done.get("splits"):
        lines.append("rows: " + ", ".join(f"{split} {rows}" for split, rows in splits.items()))
    if name.kind == "dataset":
        config = f", {name.config!r}" if name.config else ""
        lines.append(f"load_dataset({name.repo!r}{config}) finds it without a network")
    elif name.revision:
        lines.append(f"from_pretrained({name.repo!r}, revision={name.revision!r}) finds it")
    if texts := done.get("texts"):
        words = " ".join(f"--{Path(text).stem} {text}" for text in texts)
        lines.append(f"as plain text: rankup run language-model {words}")
    return lines


def _run_child(
    name: Name, caches: Caches, held: lock.Held, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Have a child do a task, a proof offline; return its answer.

    Raises:
        FetchFailed: the child's error, in plain words.
    """
    online = not task["prove"]
    with copies.passing("hub") as box:
        own = box.folder
        write_json(own / TASK, task, private=True)

        def look() -> bool:
            held.check()
            return False

        ended = watch(
            command(
                python("rankup.login.fetch.hub_child", str(own)), network=online or task["block"]
            ),
            _environment(caches, box, online),
            Limits(math.inf, sys.maxsize),
            Interrupt(),
            look=look,
            stdout=subprocess.DEVNULL,
            # A folder `org/name` where the user stands would be taken for the data set.
            folder=own,
        )
        try:
            said: dict[str, Any] = json.loads((own / ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            what = "fetched" if online else "loaded"
            raise FetchFailed(
                f"{name}: the process that {what} it ended with {ended.code}"
            ) from None
    if "failed" in said:
        raise FetchFailed(said["failed"])
    return said


def _environment(caches: Caches, box: Sandbox, online: bool) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in _OFFLINE}
    search = kept.get("PYTHONPATH", "").split(os.pathsep)
    kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(word) for word in search if word)
    kept["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
    if not sys.stderr.isatty():
        kept["HF_HUB_DISABLE_PROGRESS_BARS"] = kept["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    if not online:
        kept.update(_OFFLINE)
    return child_environment(kept, caches, box.folder, box.temporary, threads=4)


def _files_in(folder: Path) -> list[Path]:
    """Return all files below a folder, links counted as files."""
    return [Path(root) / name for root, _, names in os.walk(folder) for name in names]


def _size(path: Path) -> int:
    """Return the bytes of a file, links followed; none where it went while we looked."""
    with suppress(OSError):
        return path.stat().st_size
    return 0
