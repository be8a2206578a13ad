"""A copy of a user's project that a script runs in, and what of it goes back into the project.

    <project>/.rankup/fetch-<pid>-<token>/
        spec.json, events.jsonl, ...     what the child is to do, and what it did
        copy/                            stands for `/`: copy/home/ada/project/train.py

What is large in the project is a link in the copy, and so is all that lies beside the project, so
that `../data` is found. Nothing in the project is changed: new files are put into it once they are
whole, each under a name that is not taken.
"""

from __future__ import annotations

import errno
import glob
import os
import platform
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from ..base.amounts import size as in_words
from ..base.errors import UserError
from ..base.files import no_space, write_atomic, write_json
from ..base.text import say
from .events import Journal
from .inside import spec
from .processes import Tree

_LONG = 1 << 30  # bytes; a copy of more takes a while
_SMALL = 1 << 20  # bytes of a file that is copied
_ENTRIES = 4000  # of a copy; folders beyond are links as a whole
_BYTES = 256 << 20  # of a copy; files beyond are links
_BESIDE = 1000  # entries of a folder above the project that are linked
_ABOVE = 4  # such folders
_LEFT_OUT = {".git", ".rankup", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"}
_MARKER = ".belongs"  # in the sandbox: its TMPDIR; there: the sandbox
# What file systems say that give a file one name only, or where the copy lies on another one.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Sandbox:
    """The folders of one start of a script.

    Attributes:
        folder: private to the user; also the mark of all processes that are started.
        temporary: the script's TMPDIR. It is short: sockets that lie there have room for 108 bytes.
        copy: the folder that stands for `/`.
        linked: the project's files that are links in the copy, with their size and time of change.
    """

    folder: Path
    temporary: Path
    copy: Path
    linked: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def journal(self) -> Journal:
        """The events of the script, from its start."""
        return Journal(self.folder / spec.EVENTS)

    def ask(self, request: spec.Spec) -> None:
        """Write the request to the child."""
        write_json(self.folder / spec.SPEC, asdict(request), private=True)

    def inside(self, path: str | Path) -> Path:
        """Return the place in the copy of an absolute path."""
        return self.copy / str(path).lstrip(os.sep)

    def holds(self, path: str) -> bool:
        """Return True for the path of a file that the copy has of its own."""
        real = os.path.realpath(self.inside(path))
        return real.startswith(f"{self.copy}{os.sep}") and os.path.exists(real)

    def target(self, path: str) -> str:
        """Return the path that a link of the copy leads to, as it is outside of the copy."""
        return os.path.realpath(self.inside(path)).removeprefix(str(self.copy))

    def changed(self) -> list[str]:
        """Return the linked files that have changed since the copy was made, by whomever."""
        return sorted(path for path, was in self.linked.items() if _state(path) not in (was, None))

    def new_files(self) -> list[str]:
        """Return the real paths of the files and links that only the copy has."""
        found = []
        for folder, folders, names in os.walk(self.copy):
            folders[:] = [name for name in folders if name != "__pycache__"]
            if os.path.lexists(os.path.join(folder, ".git")[len(str(self.copy)) :]):
                folders[:] = [name for name in folders if name != ".git"]
            for name in (*names, *(one for one in folders if os.path.islink(f"{folder}/{one}"))):
                place = os.path.join(folder, name)
                path = place[len(str(self.copy)) :]
                if os.path.lexists(path) or name.endswith(".pyc"):
                    continue
                # A link of ours, to what was removed since the copy was made.
                if not (os.path.islink(place) and os.readlink(place) == path):
                    found.append(path)
        return found

    def move_in(self, paths: Iterable[str]) -> list[str]:
        """Give these new files their places in the project; what is there already is left alone.

        Where a disk is full none of them stays: half of a folder would be taken for all of it.

        Returns:
            Why it could not be done, a line for each.
        """
        problems = []
        moved: dict[Path, os.stat_result | None] = {}  # None: a folder
        for target in map(Path, paths):
            try:  # one that fails does not keep the others
                moved.update((one, None) for one in target.parents if not one.exists())
                self._move(str(target))
                moved[target] = target.lstat()
            except FileExistsError:  # noqa: PERF203
                problems.append(f"{target} is there by now, and stays as it is")
            except OSError as error:
                if no_space(error):
                    _take_back(moved)
                    why = f"{target.parent} has no room for what came ({error.strerror})"
                    return [f"{why}; make room there, and run it again"]
                problems.append(f"{target} could not be put into the project: {error.strerror}")
        return problems

    def take_from(self, other: Sandbox, paths: Iterable[str]) -> None:
        """Take new files of another copy of the same project into this one."""
        for path in paths:
            source, target = other.inside(path), self.inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                place = os.readlink(source)
                within = place.startswith(str(other.copy))
                os.symlink(self.inside(place[len(str(other.copy)) :]) if within else place, target)
            else:
                os.rename(source, target)

    def _move(self, path: str) -> None:
        source, target = self.inside(path), Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            os.symlink(os.readlink(source).removeprefix(str(self.copy)), target)
            return
        if _link(source, target):
            return
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            try:
                os.rename(source, part)
            except OSError:  # another file system; or, with quotas for projects, another folder
                if (size := source.stat().st_size) > _LONG:
                    say(f"copying {source.name} ({in_words(size)}) to {target.parent}")
                shutil.copy2(source, part)
            if not _link(part, target):
                _take_name(part, target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def sandbox(
    area: Path, roots: Iterable[Path] = (), caches: Iterable[Path] = (), kind: str = "fetch"
) -> Iterator[Sandbox]:
    """Copy folders of a user; the copy is gone afterwards.

    Args:
        area: where the sandbox's folder is made.
        roots: absolute, without links.
        caches: folders that are links as a whole.
        kind: the beginning of the folder's name.

    Raises:
        OSError: no folder could be made, or there is no room.
    """
    folder = area.resolve() / f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    temporary = Path(tempfile.mkdtemp(prefix="rankup-")).resolve()
    box = Sandbox(folder, temporary, folder / "copy")
    try:
        (temporary / _MARKER).write_text(str(folder), encoding="utf-8")
        (folder / _MARKER).write_text(str(temporary), encoding="utf-8")
        _shadow(box, tuple(roots), frozenset(caches))
        yield box
    finally:
        for one in (temporary, folder):
            remove(one)


@contextmanager
def passing(doing: str) -> Iterator[Sandbox]:
    """A sandbox without a copy, among the temporary files; those of killed processes go first."""
    base = Path(tempfile.gettempdir())
    kind = f"rankup-{doing}-{platform.node()}"  # TMPDIR may lie on a disk of many machines
    sweep(base, kind, ended=True)
    with sandbox(base, kind=kind) as box:
        yield box


def sweep(area: Path, kind: str = "fetch", *, ended: bool = False) -> None:
    """End and remove what processes that were killed have left.

    Args:
        ended: only of those that are gone from this machine; else the caller holds a lock.
    """
    found: list[Path] = []
    for folder in area.glob(f"{glob.escape(kind)}-*-*"):
        name, pid, _ = folder.name.rsplit("-", 2)
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if name != kind or (ended and Path("/proc", pid).exists()):
                continue
            found.append(folder)
            Tree(str(folder)).kill()
            temporary = Path((folder / _MARKER).read_text(encoding="utf-8"))
            ours = temporary.lstat().st_uid == os.getuid() and not temporary.is_symlink()
            # Not that of a project from which this one was copied.
            if ours and (temporary / _MARKER).read_text(encoding="utf-8") == str(folder):
                remove(temporary)
    for folder in found:
        remove(folder)


def area(project: Path) -> Path:
    """Return the folder that sandboxes of this project lie in; made if need be.

    Raises:
        UserError: there is something else of its name.
        OSError: neither the project nor the user's own folder can be written to.
    """
    ours = project / ".rankup"
    if ours.is_symlink() or (ours.exists() and not ours.is_dir()):
        what = "a link" if ours.is_symlink() else "no folder"
        raise UserError(f"{ours} is {what}; remove it: rankup keeps there what was fetched")
    with suppress(OSError):
        ours.mkdir(parents=True, exist_ok=True)
        if not (ours / ".gitignore").exists():
            write_atomic(ours / ".gitignore", "*\n")
        if os.access(ours, os.W_OK | os.X_OK):
            return ours.resolve()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) if runtime else Path(tempfile.gettempdir())
    own = own / f"rankup-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.is_symlink() or own.stat().st_uid != os.getuid():
        raise PermissionError(f"{own} is somebody else's; set TMPDIR to a folder of yours")
    return own.resolve()


@dataclass
class _Room:
    entries: int = _ENTRIES
    bytes: int = _BYTES


def fill(
    source: Path,
    target: Path,
    chain: Collection[Path] = (),
    linked: Collection[Path] = (),
    room: _Room | None = None,
) -> None:
    """Copy a folder into another one; what is large is a link.

    Args:
        chain: folders of it that are copied in any case.
        linked: folders that are links as a whole.
        room: how much may still be copied.
    """
    room = room or _Room()
    try:
        entries = sorted(os.scandir(source), key=lambda one: (not one.is_file(), one.name))
    except OSError:
        return
    room.entries -= len(entries)
    for entry in entries:
        path, new = Path(entry.path), target / entry.name
        try:
            folder = entry.is_dir(follow_symlinks=False)
            if entry.name in _LEFT_OUT or (folder and (path / _MARKER).exists()):
                continue  # a copy that lies in the project holds no copies
            if _is_within(entry, source):
                new.symlink_to(os.readlink(path))
            elif folder and (path / "pyvenv.cfg").exists():
                new.symlink_to(path)
            elif folder and (path in chain or (path not in linked and _fits(path, room.entries))):
                new.mkdir(exist_ok=True)
                fill(path, new, chain, linked, room)
            elif stat.S_ISDIR(entry.stat().st_mode):
                new.symlink_to(path.resolve())
            elif stat.S_ISREG(entry.stat().st_mode):
                size = entry.stat().st_size
                small = size <= min(_SMALL, room.bytes) and room.entries >= 0
                if small or entry.name.endswith(".py"):
                    room.bytes -= size
                    shutil.copy2(path, new)
                else:
                    new.symlink_to(path.resolve())
        except OSError as error:
            if no_space(error):
                raise


def _is_within(entry: os.DirEntry[str], folder: Path) -> bool:
    """True for a link that holds in a copy as well."""
    relative = entry.is_symlink() and not os.path.isabs(os.readlink(entry.path))
    return relative and Path(entry.path).resolve().is_relative_to(folder)


def _fits(folder: Path, room: int) -> bool:
    with os.scandir(folder) as entries:
        return sum(1 for _ in islice(entries, max(0, room) + 1)) <= room


def remove(folder: Path) -> None:
    """Remove all of it, also what a script has made unreadable; links are not followed."""

    def again(function: Callable[[str], object], path: str, error: object) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                function(path)

    shutil.rmtree(folder, onerror=again)


def _shadow(box: Sandbox, roots: Sequence[Path], caches: Collection[Path]) -> None:
    chain = {one for root in roots for one in (root, *root.parents)}
    for root in roots:
        if not box.inside(root).exists():
            box.inside(root).mkdir(parents=True)
            fill(root, box.inside(root), chain, caches)
            box.linked.update(_links(box.inside(root)))
    for folder in chain:
        with suppress(OSError):
            _repository(folder / ".git", box.inside(folder) / ".git")
    for above in dict.fromkeys(one for root in roots for one in root.parents[:_ABOVE]):
        if above == above.parent or any(above.is_relative_to(root) for root in roots):
            continue
        with suppress(OSError):
            names = os.listdir(above)
            for name in names if len(names) <= _BESIDE else ():
                if not os.path.lexists(box.inside(above) / name):
                    os.symlink(above / name, box.inside(above) / name)


def _repository(source: Path, target: Path) -> None:
    """Make a repository that knows all of another one, for git to write into.

    Args:
        source: a `.git`: a folder, or the file of a worktree that names one.
    """
    own = source
    if source.is_file():
        own = source.parent / source.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    common = own
    with suppress(FileNotFoundError):
        common = own / (own / "commondir").read_text(encoding="utf-8").strip()
    shutil.copytree(common / "refs", target / "refs")
    (target / "objects/info").mkdir(parents=True)
    (target / "objects/info/alternates").write_text(f"{common.resolve() / 'objects'}\n")
    # Without `shallow` git would look for the parents that a shallow clone does not have.
    shared = (common / name for name in ("config", "packed-refs", "shallow"))
    for path in (own / "HEAD", own / "index", *shared):
        with suppress(FileNotFoundError):
            shutil.copy2(path, target)
    with (target / "config").open("a", encoding="utf-8") as config:
        config.write(f'\n[core]\n\tbare = false\n\tworktree = "{target.parent}"\n')


def _links(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """The files outside of a folder that links in it lead to."""
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            if os.path.islink(path) and os.path.isabs(target := os.readlink(path)):
                state = _state(target)
                if state is not None:
                    yield target, state


def _state(path: str) -> tuple[int, int] | None:
    """The size and the time of change of a file, if it is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _link(source: Path, target: Path) -> bool:
    """Move a file to a name that nobody has; False where the file system has no second names."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    os.unlink(source)
    return True


def _take_back(moved: Mapping[Path, os.stat_result | None]) -> None:
    """Remove files, unless another program has put its own in their place, and empty folders."""
    for path, was in sorted(moved.items(), reverse=True):
        with suppress(OSError):
            if was is None:
                path.rmdir()
            elif os.path.samestat(path.lstat(), was):
                path.unlink()


def _take_name(source: Path, target: Path) -> None:
    """Rename a file to a name that nobody has, without a file system's second names."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        os.replace(source, target)
    except OSError:
        os.unlink(target)
        raise
