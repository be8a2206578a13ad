"""`rankup env create` and `lock`: write what is missing, then run the environment's `setup.sh`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...base.errors import UserError
from ...base.files import write_atomic
from . import kernel as jupyter
from . import plan, texts, wheel, where
from .process import setup
from .texts import KINDS, Kind

_KIND_LINE = re.compile(r"^\s*(?:export\s+)?ENV_KIND=[\"']?(\w*)", re.MULTILINE)
_OWN_NAMES = {"config.sh", "modules.sh", "requirements.txt", "setup.sh", "activate.sh"}


def create(folder: str | None, *, kind: str | None, kernel: bool) -> int:
    """Make an environment, or bring it up to date; the exit code.

    Files that the user has changed stay as they are.

    Raises:
        UserError: the folder cannot be one, or `kind` is none or not that of its config.sh.
    """
    path = where.named(folder)
    with _explained(path):
        _write_files(path, kind)
        if note := _take_wheel(path):
            print(f"note: {note}")
        if kernel:
            jupyter.write_script(path)
    code = setup(path)
    if code == 0 and kernel:
        print(f"Jupyter kernel: {jupyter.register(path)}")
    return code


def lock(folder: str | None) -> int:
    """Write `requirements.lock`; the exit code. The old one stays where that fails.

    Raises:
        UserError: there is no environment.
    """
    path = where.existing(folder)
    with _explained(path):
        _write_files(path, None)
        wheel.put(path / "wheels")
    return setup(path, "lock")


def _take_wheel(path: Path) -> str:
    """Put rankup's wheel there, unless a lock names the one that is; a note in that case.

    Older ones are removed by setup.sh, within its lock: another process may be installing one.
    """
    lock = path / "requirements.lock"
    named = wheel.named_by(lock.read_text(errors="replace"), path) if lock.is_file() else None
    name, _ = wheel.build()
    if named is None or named.name == name:
        wheel.put(path / "wheels")
        return ""
    return (
        f"requirements.lock names {named.name}, which stays; this rankup is {name}: "
        "`rankup env lock` takes that one"
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A file that cannot be read or written ends with its name and why."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}") from None


def _write_files(path: Path, kind: str | None) -> None:
    """Write what is missing of the five files, and the newer version of rankup's own two."""
    if kind is not None and kind not in KINDS:
        raise UserError(f"--kind {kind!r} is not known; it is modules or wheels")
    _refuse_other_folders(path)
    said = _said_kind(path)
    if kind and said and kind != said:
        raise UserError(
            f"{path / 'config.sh'} says ENV_KIND={said}, and --kind {kind}; change it there"
        )
    wanted = plan.make(path, next((one for one in KINDS if one == kind), said))
    if wanted.modules and wanted.kind == "wheels" and not kind and not said:
        print(
            f"note: {wanted.title} has modules, and there is no `module` command here: this "
            "environment is of wheels. In a shell that has one, --kind modules makes the other"
        )
    start = texts.users(wanted)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in start.items():
        if not (path / name).exists():
            write_atomic(path / name, text)
    _write_own(path)


def _write_own(path: Path) -> None:
    for name, text in texts.own().items():
        file = path / name
        if file.exists():
            found = file.read_text(errors="replace")
            if found == text:
                continue
            if not texts.unchanged(found):
                print(f"note: {file} has been changed and stays; to have rankup's again, remove it")
                continue
        write_atomic(file, text)


def _refuse_other_folders(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name another folder: rankup env create FOLDER")
    if (path / "pyvenv.cfg").exists():
        raise UserError(
            f"{path} is a venv itself; the environment's own lies in a folder of it. Name another "
            "folder: rankup env create FOLDER"
        )
    if path.is_dir():
        found = {one.name for one in path.iterdir()}
        if found and not found & _OWN_NAMES:
            raise UserError(
                f"{path} is not empty and no environment; name another folder: "
                "rankup env create FOLDER"
            )


def _said_kind(path: Path) -> Kind | None:
    with suppress(OSError):
        match = _KIND_LINE.search((path / "config.sh").read_text(errors="replace"))
        return next((kind for kind in KINDS if match and match[1] == kind), None)
    return None
