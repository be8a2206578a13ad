"""Records of what has been fetched for a project, one JSON file per thing, in `.rankup/fetched/`.

`fetch` writes it, `doctor` and `run` read it: what `rankup.toml` lists must still be there when a
job is submitted (`unmet`), and the job must have the variables under which it is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from ..base import urls
from ..base.amounts import some
from ..base.errors import UserError
from ..base.files import open_regular, write_atomic, write_json
from ..base.secrets import without
from ..site.config import Config, Url

Proof = Literal["namespace", "blocked", "failed", "none"]
# How a start without a network was made sure to have none.
HOW = {"namespace": "network namespace", "blocked": "Python's connections blocked"}
_FOLDER = Path(".rankup") / "fetched"
_SCRIPT = "script:"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
        """Return what a job would find instead of it ("is gone"), empty if it would find it.

        A folder's content is not looked at.
        """
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "is gone"
        except (OSError, ValueError) as error:
            return f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
        if os.path.isfile(self.path) and self.files == 1 and found.st_size != self.bytes:
            return f"has {found.st_size} bytes now, and had {self.bytes} when it was fetched"
        return ""


@dataclass(frozen=True)
class Record:
    """One thing that was asked for.

    Attributes:
        key: `dataset:wikitext-2`, `model:gpt2`, `url:https://...`, `script:["/abs/train.py"]`.
        at: when, ISO 8601 in UTC.
        items: what came, or was there already.
        variables: where the caches are (`HF_HOME`), for the job.
        offline: what tells the programs that were used that there is no network.
        proof: how a start without a network was tried: in a network namespace, with blocked
            sockets, not at all, or it failed.
        note: why there is no proof, or why it failed.
        code: sha256 of a script, and of the user's own modules that it imports, by path, from
            before it was started.
    """

    key: str
    at: str = field(default_factory=_now)
    items: tuple[Item, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    offline: Mapping[str, str] = field(default_factory=dict)
    proof: Proof = "none"
    note: str = ""
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def proved(self) -> bool:
        """It started, or loaded, without a network."""
        return self.proof in HOW

    def missing(self) -> list[str]:
        """Return what of it a job would not find, one line each."""
        # Of a script its name says what brought the file: nobody knows it by the file's.
        script = self._script()
        brought = f", which fetching {script.name} brought," if script else ""
        return [f"{item.path}{brought} {why}" for item in self.items if (why := item.missing())]

    def faults(self) -> list[str]:
        """Return why a job without a network could not do with it, one line each."""
        found = self.missing()
        if self.proof == "failed":
            note = f" ({self.note})" if self.note else ""
            script = self._script()
            what = f"{script.name} did not start" if script else "it did not load"
            found.append(f"{what} without a network{note}")
        return found

    def doubts(self) -> list[str]:
        """Return why nobody can say whether a script's job could do with it, one line each."""
        script = self._script()
        if script is None:
            return []
        found = []
        if self.proof == "none":
            why = f" ({self.note})" if self.note else ""
            found.append(f"that it starts without a network was not proved{why}")
        if changed := code_changed(self.code):
            names = [os.path.relpath(path, script.parent) for path in changed]
            found.append(f"changed since it was fetched: {some(names)}")
        return found

    def outlasts(self, later: Record) -> bool:
        """Return True where this says more than a `later` start that showed nothing."""
        stands = self.proved and not self.missing() and not code_changed(self.code)
        return stands and later.proof == "none"

    def _script(self) -> Path | None:
        """The script, where it is the record of one."""
        if not self.key.startswith(_SCRIPT):
            return None
        return Path(json.loads(self.key.removeprefix(_SCRIPT))[0])


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
    path = folder / f"{hashlib.sha256(os.fsencode(record.key)).hexdigest()[:16]}.json"
    write_json(path, asdict(record))
    return path


def read(*folders: Path) -> list[Record]:
    """All records of these projects, sorted by key; a file that is none is passed over.

    Of two with one key that of the first project counts.
    """
    found: dict[str, Record] = {}
    for folder in folders:
        for path in (folder / _FOLDER).glob("*.json"):
            if (one := _load(path)) is not None:
                found.setdefault(one.key, one)
    return sorted(found.values(), key=lambda record: record.key)


def find(project: Path, key: str) -> Record | None:
    """The record with that key."""
    return next((record for record in read(project) if record.key == key), None)


def script_key(script: Path, args: tuple[str, ...]) -> str:
    """The key of a script with its arguments, of which a digest: they may hold a token."""
    digest = [hashlib.sha256(json.dumps(args).encode()).hexdigest()[:16]] if args else []
    return _SCRIPT + json.dumps([str(script.resolve()), *digest], ensure_ascii=False)


def key_of_url(url: Url) -> str:
    """The key of a file from the web; without its query, yet different by it."""
    where = "" if url.to is None else f" -> {url.to}"
    return f"url:{urls.identity(url.url)}{where}"


def folders(project: Path, script: Path) -> tuple[Path, ...]:
    """Return the folders of records for a script: its project, and where it was fetched from.

    Without a `rankup.toml` the project is the folder that one is in; mostly that is the script's.
    """
    return tuple(dict.fromkeys((project.resolve(), script.resolve().parent)))


def of_script(project: Path, script: Path, args: tuple[str, ...]) -> tuple[Record | None, bool]:
    """The record of a script, and whether it was fetched with just these arguments.

    Without one for these arguments, the newest of the script with others that was proved: a start
    that failed says nothing of another one.
    """
    key = script_key(script, args)
    known = read(*folders(project, script))
    exact = next((record for record in known if record.key == key), None)
    if exact is not None:
        return exact, True
    start = script_key(script, ())[:-1]
    others = [r for r in known if r.proved and r.key.startswith((start + ",", start + "]"))]
    return max(others, key=lambda record: record.at, default=None), False


def _load(path: Path) -> Record | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = Record(items=tuple(Item(**item) for item in values.pop("items")), **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    # Each value has the type of one of ours; a mapping's are words.
    sound = _same_types(found, Record("")) and all(_same_types(one, _ITEM) for one in found.items)
    return found if sound else None


_ITEM = Item("", "", "", 0)


def _same_types(one: Item | Record, ours: Item | Record) -> bool:
    values = vars(one)
    words = [word for each in values.values() if isinstance(each, dict) for word in each.values()]
    alike = all(type(values[name]) is type(value) for name, value in vars(ours).items())
    return alike and all(isinstance(word, str) for word in words)


def code_of(script: Path) -> dict[str, str]:
    """sha256 of a script, and of the modules beside it that it imports, by absolute path.

    They are found by reading; where the script cannot be read, it is the only one.
    """
    from ..script.modules import gather  # for `fetch` alone: `run` compares, and reads nothing

    paths = [script.resolve()]
    with suppress(UserError):
        paths += [file.path.resolve() for file in gather(paths[0]).files]
    return {str(path): digest for path in dict.fromkeys(paths) if (digest := _digest(str(path)))}


def code_changed(code: Mapping[str, str]) -> list[str]:
    """The paths of `code_of` whose files are others now, or are gone."""
    return [path for path, digest in code.items() if _digest(path) != digest]


def _digest(path: str) -> str:
    """The sha256 of a file; empty for a pipe or a device, which would be waited for."""
    try:
        with open_regular(Path(path)) as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (OSError, ValueError):
        return ""


def command_line(words: Iterable[str]) -> str:
    """A command line of these words, fit to be copied where nothing secret had to be hidden."""
    return shlex.join(without([*words], os.environ))


@dataclass(frozen=True)
class Unmet:
    """Something that a job needs and would not find.

    Attributes:
        what: as the user calls it (`model gpt2`).
        why: in one line.
        todo: the command that brings it, or what to mend.
        key: of its record; empty where it cannot have one.
    """

    what: str
    why: str
    todo: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.todo}"


def unmet(config: Config) -> list[Unmet]:
    """Return what is listed and not there.

    Quick, and without a network: the records are read, and the files that they name looked for.
    """
    if not config.fetch:
        return []
    project = config.project(Path.cwd())
    known = {one.key: one for one in read(project)}
    found = []
    for kind, names in (("dataset", config.fetch.datasets), ("model", config.fetch.models)):
        for name in names:
            todo = shlex.join(["rankup", "fetch", f"--{kind}", name])
            found.append(Unmet(f"{kind} {name}", "", todo, f"{kind}:{name}"))
    for url in config.fetch.urls:
        # The URL itself may hold a password; all that is listed is fetched together.
        key = key_of_url(url)
        found.append(Unmet(key.partition(":")[2], "", "rankup fetch", key))
    found += [_script(config, number, line) for number, line in enumerate(config.fetch.scripts)]
    sums = {key_of_url(url): url.sha256 for url in config.fetch.urls if url.sha256}
    whys = [one.why or _lacks(known.get(one.key), sums.get(one.key, "")) for one in found]
    return [replace(one, why=why) for one, why in zip(found, whys, strict=True) if why]


def _script(config: Config, number: int, line: str) -> Unmet:
    entry = f"fetch.scripts[{number}] in {config.file}"
    project = config.project(Path.cwd())
    try:
        script, *args = shlex.split(line)
    except ValueError:
        return Unmet(entry, "this is no command line", "mend it there")
    if not os.path.isfile(project / script):
        return Unmet(entry, f"no such file: {script}", "mend it there")
    shown = command_line([script, *args])
    # Where it holds a secret: all that is listed is fetched together.
    whole = shown == shlex.join([script, *args])
    todo = f"rankup fetch {shown}" if whole else "rankup fetch"
    return Unmet(f"script {shown}", "", todo, script_key(project / script, tuple(args)))


def _lacks(found: Record | None, sha256: str) -> str:
    """Return why a job would not have it, empty if it would."""
    if found is None:
        return "not fetched"
    if why := some(found.faults(), most=1):
        return why
    if sha256 and {item.sha256 for item in found.items} != {sha256}:
        return "its checksum is not the one in rankup.toml"
    return "" if found.proved else next(iter(found.doubts()), "")
