"""Keeps what a script writes in its copy of the project, and records it.

The copy has links to what is large. A link is replaced by what it stands for before something is
written there. Elsewhere a script may make new files, or nothing at all, and change none that is
there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from ...base.urls import among
from .. import events
from .hooks import Change, Changes, Handler, Hook, replaces
from .journal import Journal
from .spec import EVENTS, LOCK

# The ends of names of files of which not all is there yet: whoever goes on with one may write it.
PARTIAL = (".part", ".partial", ".incomplete", ".tmp", ".temp", ".download", ".crdownload")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_COPY_LIMIT = 256 << 20
# SQLite keeps these beside a database: with another state of it, they are damage.
_BESIDE = ("-wal", "-shm", "-journal")
_HARMLESS = ("mode=memory", "mode=ro", "immutable=1")
# Programs that write into a file which is named to them: none of a user's must be one of those.
_WRITE = {"aria2c", "curl", "dd", "perl", "sed", "shred", "tee", "truncate", "wget"}
# Functions that write a file with C++ or Rust: the module and the name, and which argument is the
# path.
_SAVES = (
    ("cv2", "imwrite", 0, "filename"),
    ("pandas.core.frame", "DataFrame.to_parquet", 1, "path"),
    ("polars.dataframe.frame", "DataFrame.write_csv", 1, "file"),
    ("polars.dataframe.frame", "DataFrame.write_ipc", 1, "file"),
    ("polars.dataframe.frame", "DataFrame.write_parquet", 1, "file"),
    ("pyarrow.csv", "write_csv", 1, "output_file"),
    ("pyarrow.feather", "write_feather", 1, "dest"),
    ("pyarrow.ipc", "new_file", 0, "sink"),
    ("pyarrow.ipc", "new_stream", 0, "sink"),
    ("pyarrow.parquet.core", "ParquetWriter.__init__", 1, "where"),
    ("safetensors.numpy", "save_file", 1, "filename"),
    ("safetensors.torch", "save_file", 1, "filename"),
    ("tokenizers", "Tokenizer.save", 1, "path"),
    ("torch.jit._script", "RecursiveScriptModule.save", 1, "f"),
    ("torch.serialization", "save", 1, "f"),
    ("torchvision.io.image", "write_file", 0, "filename"),
)
# How h5py opens a file, by its mode; the default is to read.
_H5PY = {"w": "truncate", "r+": "update", "a": "update"}


class Files:
    """Handlers of file events and of programs.

    Args:
        copy: the folder that the copy lies in, absolute and without links; empty: there is none.
        ignored: files and folders of which nothing is told.
        free: folders in which files may be overwritten: caches of libraries.
        state: the folder of the journal, and of a lock between the script's processes.
        earlier: journals of starts before this one.
    """

    new_elsewhere = True  # outside of the copy new files may be made
    why = "a copy of the script runs, which by an absolute path changes no file that is there"

    def __init__(
        self,
        journal: Journal,
        copy: str,
        ignored: Iterable[str],
        free: Iterable[str],
        state: str,
        earlier: Iterable[str] = (),
    ) -> None:
        self._journal = journal
        self._copy = copy + os.sep if copy else ""
        self._ignored = (*_SYSTEM, *(os.path.realpath(one) + os.sep for one in ignored if one))
        self._free = tuple(os.path.realpath(one) + os.sep for one in free if one)
        self._lock = os.path.join(state, LOCK)
        own = os.path.join(state, EVENTS)
        self._journals = [events.Journal(Path(one)) for one in (*earlier, own)]
        self._made: set[str] = set()  # paths outside of the copy, of any process of these starts

    def handlers(self) -> dict[str, Handler]:
        """Return the audit events and their handlers."""
        return {
            "open": self._opened,
            "os.rename": self._renamed,
            "os.remove": lambda path, fd=-1: self._changed(path, "remove", fd),
            "os.rmdir": lambda path, fd=-1: self._changed(path, "rmdir", fd),
            "shutil.rmtree": lambda path, fd=-1: self._changed(path, "rmtree", fd or -1),
            "os.mkdir": lambda path, mode=0, fd=-1: self._changed(path, "mkdir", fd),
            "os.link": lambda old, path, *fds: self._changed(path, "link", *fds[1:]),
            "os.symlink": lambda old, path, *fds: self._changed(path, "link", *fds),
            "os.chdir": self._entered,
            "os.truncate": lambda path, length: self.written(path, "update", creates=False),
            "os.chmod": lambda path, mode=0, fd=-1: self._changed(path, "chmod", fd),
            "os.chown": lambda path, *rest: self._changed(path, "chmod"),
            "os.utime": lambda path, *rest: self._changed(path, "chmod"),
            "sqlite3.connect": self._database,
            "subprocess.Popen": self._program,
            "os.system": self._shell,
            "os.exec": lambda program, words, *rest: self._program(program, words),
            "os.posix_spawn": lambda program, words, *rest: self._program(program, words),
        }

    def written(
        self, path: object, how: str, *, creates: bool = True, new: bool = False, **_: Any
    ) -> None:
        """A file is about to be written to.

        Args:
            how: `truncate`, `append` or `update`.
            creates: it is made where it is missing.
            new: it must not be there yet, else the script gets an error.

        Raises:
            PermissionError: it is there, and not the script's to change.
        """
        named = _absolute(path)
        real = os.path.realpath(named) if named else ""
        if not real or self._is_ignored(real):
            return
        existed = os.path.lexists(real)
        if not (existed or creates) or (existed and new):
            return
        if existed and not os.path.isfile(real):
            return  # a folder, of which the call tells; a device, a pipe
        free = real.startswith(self._free)
        copied = not free and self._own(named, whole=how != "truncate")
        if copied:
            real = os.path.realpath(named)
        elif not free:
            self._check(real, "writing")
        self.note("open", path=real, existed=existed, how=how, copied=copied)

    def note(self, event: str, **fields: Any) -> None:
        """Tell of something that is done to files."""
        self._journal.must(event, **fields, where=self._journal.where())

    def _opened(self, path: object, mode: object, flags: int) -> None:
        if not flags & _WRITES or isinstance(path, int):
            return
        if flags & os.O_TRUNC:
            how = "truncate"
        elif flags & os.O_APPEND:
            how = "append"
        elif flags & os.O_ACCMODE:
            how = "update"
        else:
            return
        creates = bool(flags & os.O_CREAT)
        self.written(path, how, creates=creates, new=bool(flags & os.O_EXCL))

    def _renamed(self, old: object, new: object, first: int = -1, second: int = -1) -> None:
        source, target = _absolute(old, first), _absolute(new, second)
        if not os.path.lexists(source):
            return
        ours, existed = self._is_ignored(_in_place(source)), os.path.lexists(target)
        source, _ = self._permit(source, "renaming")
        target, copied = self._permit(target, "replacing")
        if target and not self._is_ignored(target):
            fields = {"from": source, "to": target, "made": ours, "existed": existed}
            self.note("rename", **fields, copied=copied)

    def _changed(self, path: object, how: str, descriptor: int = -1) -> None:
        named = _absolute(path, descriptor)
        if not named:
            return
        if how in ("mkdir", "link") and os.path.lexists(named):
            return  # the call says so itself
        if how == "chmod" and self.new_elsewhere and not named.startswith(self._copy or "\0"):
            return
        if how not in ("mkdir", "link") and not os.path.lexists(named):
            return
        if how in ("rmtree", "chmod"):
            self._own(named, whole=True)
        real, copied = self._permit(named, "changing" if how == "chmod" else "removing")
        if real and not self._is_ignored(real) and how != "chmod":
            self.note(how, path=real, copied=copied)

    def _entered(self, path: object) -> None:
        """A relative path is one of the copy, also behind a link."""
        if named := _absolute(path):
            with suppress(OSError):
                self._own(named, whole=True)

    def _permit(self, named: str, what: str) -> tuple[str, bool]:
        """Return the path without links in its folder, and True where it lies in the copy.

        Raises:
            PermissionError: it lies elsewhere, and is not the script's to change.
        """
        real = _in_place(named)
        if not real or self._is_ignored(real) or real.startswith(self._free):
            return real, False
        # A link of ours that is removed or replaced is only a name: its folder must be the copy's.
        if self._own(os.path.dirname(named), whole=True):
            return _in_place(named), True
        self._check(real, what)
        return real, False

    def _is_ignored(self, real: str) -> bool:
        return (real + os.sep).startswith(self._ignored) or "/__pycache__" in real

    def _check(self, real: str, what: str) -> None:
        """Refuse to change what is there already, and was not made by this script."""
        if not self.new_elsewhere:
            self._refuse(real, what)
        kept = real.endswith((*PARTIAL, ".lock"))
        if os.path.lexists(real) and not kept and not self._is_made(real):
            self._refuse(real, what)
        self._made.add(real)

    def _is_made(self, path: str) -> bool:
        """True for what one of the starts has made, or lies in a folder that it has."""
        above = {path}
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            above.add(path)
        if self._made.isdisjoint(above):  # another process may have
            self._made.update(
                event.text("to") or event.text("path")
                for journal in self._journals
                for event in journal.read()
                if event.kind in ("open", "mkdir", "link", "rename")
                and not event["copied"]
                and (event.kind == "rename" or not event.get("existed"))
            )
        return not self._made.isdisjoint(above)

    def _own(self, path: str, *, whole: bool) -> bool:
        """Make sure that no link of the copy leads out of it on the way; False for another place.

        Args:
            whole: the content of what a link stands for is needed; else it is about to be emptied.
        """
        if not self._copy:
            return False
        if (os.path.realpath(path) + os.sep).startswith(self._copy):
            return True
        named = os.path.normpath(path)
        if not (named + os.sep).startswith(self._copy):
            return False
        with open(self._lock, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            place = self._copy
            for part in os.path.relpath(named, self._copy).split(os.sep):
                place = os.path.join(place, part)
                if os.path.islink(place):
                    self._replace(place, whole=whole)
        return (os.path.realpath(path) + os.sep).startswith(self._copy)

    def _replace(self, link: str, *, whole: bool) -> None:
        """Put what a link stands for in its place; whoever reads it meanwhile finds one of them."""
        target, new = os.path.realpath(link), f"{link}.rankup-{os.getpid()}.tmp"
        if os.path.isdir(target):
            os.mkdir(new)
            for name in os.listdir(target):
                os.symlink(os.path.join(target, name), os.path.join(new, name))
            os.unlink(link)
            os.rename(new, link)
        elif os.path.isfile(target):
            if whole and os.path.getsize(target) > _COPY_LIMIT:
                why = f"a file of more than {_COPY_LIMIT >> 20} MiB is not copied to be changed"
                self._refuse(target, "changing", why)
            if whole:
                shutil.copyfile(target, new)
                os.chmod(new, stat.S_IMODE(os.stat(target).st_mode) | stat.S_IWUSR)
                os.replace(new, link)
            else:
                os.unlink(link)

    def _refuse(self, path: str, what: str, why: str = "") -> NoReturn:
        why, where = why or self.why, self._journal.where()
        self._journal.tell("refused", what=f"{what} {path}", path=path, why=why, where=where)
        raise PermissionError(errno.EACCES, f"rankup: {why}", path)

    def _database(self, database: object) -> None:
        if not isinstance(database, str | bytes | os.PathLike):
            return
        name = os.fsdecode(database)
        if name.startswith("file:"):
            parts = urlsplit(name)
            if any(word in parts.query for word in _HARMLESS):
                return
            name = unquote(parts.path)
        if name and name != ":memory:":
            self.written(name, "update")
            for end in _BESIDE:
                self.written(name + end, "update", creates=False)

    def _shell(self, command: object, folder: object = None) -> None:
        text = _text(command)
        words = _shell_words(text)
        # It may begin with secrets: `TOKEN=... program`.
        program = next((word for word in words if "=" not in word), "")
        self.start(program, [text])
        self._hand(words, _text(folder))

    def _program(
        self, program: object, words: Iterable[object], folder: object = None, *rest: object
    ) -> None:
        given = [_text(word) for word in words]
        if given[:2] == ["/bin/sh", "-c"] and len(given) > 2:
            self._shell(given[2], folder)
        else:
            self.start(_text(program), given)
            self._hand([_text(program), *given], _text(folder))

    def start(self, program: str, words: Iterable[str]) -> None:
        """A program is about to be started: it is told by its name and the URLs it is given."""
        urls = [url for word in words for url in among(word)]
        where = self._journal.where()
        self._journal.tell("spawn", words=[os.path.basename(program), *urls], where=where)

    def _hand(self, given: Sequence[str], folder: str) -> None:
        """Give a program the copy's own files and folders where it is given links.

        Raises:
            PermissionError: it writes into files, and one of those is too large for a copy.
        """
        words = list(given)
        for word in given:
            if word.endswith(".sh"):
                words += _shell_words(_beginning(os.path.join(folder, word)))
        programs = {os.path.basename(word) for word in words}
        writes = not _WRITE.isdisjoint(programs)
        targets = {after for word, after in pairwise(words) if word.startswith(">")}
        if "cp" in programs:
            targets.add(words[-1])
        values = [word.partition("=")[2] for word in words]  # --output=FILE
        values += [word.rpartition("/")[2] for word in words if "://" in word]  # curl -O
        for word in ["", *words, *filter(None, values)]:
            named = _absolute(os.path.join(folder, word) or ".")
            if named and os.path.lexists(named):
                large = os.path.isfile(named) and os.path.getsize(named) > _COPY_LIMIT
                if large and not writes and word not in targets:
                    continue  # most likely it is read
                try:
                    self._own(named, whole=True)
                except OSError:
                    if large:
                        raise


def writers(files: Files, hook: Hook) -> Changes:
    """Return what to do after which import, so that what C++ or Rust opens is seen as well."""

    def written(path: object, how: str, new: bool = False) -> None:
        with hook.unwatched():
            files.written(path, how, new=new)

    saves: dict[str, list[Change]] = {}
    for module, function, place, name in _SAVES:
        saves.setdefault(module, []).append(partial(_save, function, place, name, written))
    saves["h5py._hl.files"] = [lambda module: _h5py(module, written)]
    return saves


def _save(function: str, place: int, name: str, written: Callable[..., None], module: Any) -> None:
    """Tell of the file that a function writes before it does.

    Args:
        function: its name in the module, that of a method with its class.
        place: of the path among its arguments, and `name` among its keywords.
    """
    above, _, last = function.rpartition(".")

    @replaces(getattr(module, above) if above else module, last)
    def save(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[place] if len(args) > place else kwargs.get(name)
        if isinstance(path, str | os.PathLike):
            written(path, "truncate")
        return original(*args, **kwargs)


def _h5py(module: Any, written: Callable[..., None]) -> None:
    @replaces(module.File, "__init__")
    def init(
        original: Any, file: Any, name: Any, mode: Any = "r", *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(name, str | bytes | os.PathLike) and mode != "r":
            written(name, _H5PY.get(mode, "update"), new=mode not in _H5PY)
        original(file, name, mode, *args, **kwargs)


def _absolute(path: object, descriptor: int = -1) -> str:
    """Return the absolute path, links in it kept; nothing for what is no path."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(path)
    if not name or "\0" in name:
        return ""
    with suppress(OSError):
        base = os.getcwd() if descriptor < 0 else os.readlink(f"/proc/self/fd/{descriptor}")
        return os.path.normpath(os.path.join(base, name))
    return ""


def _in_place(named: str) -> str:
    """Return the path of a name, whatever it stands for: only its folder is resolved."""
    folder, name = os.path.split(named)
    return os.path.join(os.path.realpath(folder), name) if named else ""


def _shell_words(text: str) -> list[str]:
    """Return the words of a shell's command or script; `>` and its like are words, too."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return text.split()


def _beginning(path: str) -> str:
    """Return the first 64 KiB of a text; nothing where there is none."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(64 << 10)
    return ""


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else ""
