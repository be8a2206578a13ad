"""What has been fetched for a project, one JSON file per thing, in `.rankup/fetched/`.

`fetch` writes it, `doctor` and `run` read it: what is listed must still be there when a job is
submitted, and the job must have the variables under which it is found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..base.files import write_atomic, write_json

Proof = Literal["namespace", "blocked", "failed", "none"]
_FOLDER = Path(".rankup") / "fetched"


@dataclass(frozen=True)
class Item:
    """A file or folder that came.

    Attributes:
        name: what a user would call it (`gpt2`, `imagewoof2-320.tgz`).
        source: URL without user, password and query; empty where not known.
        path: absolute; where the job reads it.
        bytes: of the file, or of all files in the folder.
        files: 1, or those in the folder.
        sha256: of a file, where computed.
        revision: commit of a hub's repository.
    """

    name: str
    source: str
    path: str
    bytes: int
    files: int = 1
    sha256: str = ""
    revision: str = ""

    def missing(self) -> str:
        """Why a job would not find it, empty if it would. A folder's content is not looked at."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        if os.path.isfile(self.path) and self.files == 1 and found.st_size != self.bytes:
            return f"{self.path}: {found.st_size} bytes now, {self.bytes} when it was fetched"
        return ""


@dataclass(frozen=True)
class Record:
    """One thing that was asked for.

    Attributes:
        key: `dataset:wikitext-2`, `model:gpt2`, `url:https://...`, `script:/abs/train.py --x`.
        at: when, ISO 8601 in UTC.
        items: what came, or was there already.
        variables: where the caches are (`HF_HOME`), for the job.
        offline: what tells the programs that were used that there is no network.
        proof: how a start without a network was tried: in a network namespace, with blocked
            sockets, not at all, or it failed.
        note: why there is no proof, or why it failed.
    """

    key: str
    at: str
    items: tuple[Item, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    offline: Mapping[str, str] = field(default_factory=dict)
    proof: Proof = "none"
    note: str = ""

    def missing(self) -> list[str]:
        """Why a job would not find what it needs, one line each."""
        return [why for item in self.items if (why := item.missing())]


def write(project: Path, record: Record) -> Path:
    """Keep a record, in the place of an older one with its key; the file's path.

    Raises:
        OSError: the project's folder cannot be written to.
    """
    folder = project / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    if not ignore.exists():
        write_atomic(ignore, "*\n")
    path = folder / f"{hashlib.sha256(record.key.encode()).hexdigest()[:16]}.json"
    write_json(path, asdict(record))
    return path


def read(project: Path) -> list[Record]:
    """All records of a project, sorted by key; a file that is none is passed over."""
    found = (_load(path) for path in (project / _FOLDER).glob("*.json"))
    return sorted((one for one in found if one is not None), key=lambda record: record.key)


def find(project: Path, key: str) -> Record | None:
    """The record with that key."""
    return next((record for record in read(project) if record.key == key), None)


def script_key(script: Path, args: tuple[str, ...]) -> str:
    """The key of a script with its arguments."""
    return "script:" + json.dumps([str(script.resolve()), *args], ensure_ascii=False)


def of_script(project: Path, script: Path, args: tuple[str, ...]) -> tuple[Record | None, bool]:
    """The record of a script, and whether it was fetched with just these arguments.

    Without one for these arguments, the newest of the script with others.
    """
    exact = find(project, script_key(script, args))
    if exact is not None:
        return exact, True
    start = script_key(script, ())[:-1]
    others = [r for r in read(project) if r.key.startswith((start + ",", start + "]"))]
    return max(others, key=lambda record: record.at, default=None), False


def _load(path: Path) -> Record | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        record = Record(items=tuple(Item(**item) for item in values.pop("items")), **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    sound = isinstance(record.key, str) and record.proof in get_args(Proof)
    items = all(isinstance(i.path, str) and isinstance(i.bytes, int) for i in record.items)
    return record if sound and items else None
