"""`rankup env create` and `lock`: write what is missing, then run the environment's `setup.sh`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import rankup

from ...base.errors import EXIT_FAILED, RunFailed, UserError
from ...base.files import no_space, write_atomic
from ...base.processes import end_group
from . import requirements, state, texts
from .texts import KINDS, Kind

_KIND_LINE = re.compile(r"^\s*(?:export\s+)?ENV_KIND=[\"']?(\w*)", re.MULTILINE)
_PINNED = re.compile(r"^[ \t]*rankup(?:\[[^\]]*\])?[ \t]*==[ \t]*([^\s;#\\]+)", re.MULTILINE)
_OWN_NAMES = {"config.sh", "modules.sh", "requirements.txt", "setup.sh", "activate.sh"}
_GRACE = 10.0  # seconds that setup.sh has to remove its lock
# Its standard input ends with rankup, however that ends; the group then is ended with all pips.
_UNTIL_STDIN_ENDS = """\
exec 3<&0 </dev/null
(
    read -r <&3
    trap '' TERM
    kill -TERM -- "-$$"
    sleep 5
    kill -KILL -- "-$$"
) &
"$@" 3<&-
"""


def create(folder: str | None, *, kind: str | None) -> int:
    """Make an environment, or bring it up to date; return the exit code.

    Files that the user has changed stay as they are.

    Raises:
        UserError: the folder cannot be one, or `kind` is none or not that of its config.sh.
    """
    path = state.named(folder)
    with _explained(path):
        _write_files(path, kind)
        _say_which_rankup(path / "requirements.txt")
    return _setup(path)


def lock(folder: str | None) -> int:
    """Write `requirements.lock`; the exit code. The old one stays where that fails.

    Raises:
        UserError: there is no environment.
    """
    path = state.existing(folder)
    with _explained(path):
        _write_files(path, None)
        _say_which_rankup(path / "requirements.txt")
    return _setup(path, "lock")


def _setup(folder: Path, *words: str) -> int:
    """Run `bash setup.sh` there; 0, 1 where it failed, 130 at Ctrl-C.

    It is a session of its own, which ends with this process, however that ends.

    Raises:
        RunFailed: there is no bash.
    """
    sys.stdout.flush()  # what was said so far stands before what it says
    try:
        process = subprocess.Popen(
            ["bash", "-c", _UNTIL_STDIN_ENDS, "bash", "bash", "setup.sh", *words],  # noqa: S607
            cwd=folder,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RunFailed(f"bash cannot be started: {error.strerror}") from None
    assert process.stdin is not None
    code = 130
    with suppress(KeyboardInterrupt):
        code = process.wait()
    process.stdin.close()
    if code == 130:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    end_group(process)
    return code if code in (0, 130) else EXIT_FAILED


def _say_which_rankup(path: Path) -> None:
    """Print a note where requirements.txt asks for no rankup, or for another version than this."""
    asked = requirements.names(path)
    pinned = _PINNED.search(requirements.content(path).decode(errors="replace"))
    if pinned and pinned[1] != rankup.__version__:
        print(
            f"note: {path} asks for rankup {pinned[1]}, and this is {rankup.__version__}. "
            f"This one's line: {texts.own_requirement()}"
        )
    elif not any(one == "rankup" or "/" in one for one in asked):  # a path may be that of rankup
        print(
            f"note: {path} does not ask for rankup, so that create installs none. "
            f"Its line: {texts.own_requirement()}"
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A file that cannot be read or written ends with its name and why."""
    try:
        yield
    except OSError as error:
        kind = RunFailed if no_space(error) else UserError
        raise kind(f"{error.filename or path}: {error.strerror}") from None


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
    wanted = texts.planned(path, next((one for one in KINDS if one == kind), said))
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
    for name, text in texts.own().items():
        file = path / name
        found = file.read_text(errors="replace") if file.exists() else None
        if found is None or (found != text and texts.unchanged(found)):
            write_atomic(file, text)
        elif found != text:
            print(f"note: {file} has been changed and stays; to have rankup's again, remove it")


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
