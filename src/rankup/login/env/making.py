"""`rankup env create` and `lock`: write what is missing, then run the environment's `setup.sh`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import rankup

from ...base.errors import EXIT_FAILED, RunFailed, UserError
from ...base.files import no_space, write_atomic
from ...base.processes import end_group
from . import state, texts
from .texts import KINDS, Kind

_KIND_LINE = re.compile(r"^\s*(?:export\s+)?ENV_KIND=[\"']?(\w*)", re.MULTILINE)
_OWN_NAMES = {"config.sh", "modules.sh", "requirements.txt", "setup.sh", "activate.sh"}
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "*~")
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
        lock = path / "requirements.lock"
        named = lock.read_text(errors="replace") if lock.is_file() else ""
        wheels = _wheels(path)
        if any(hashlib.sha256(one.read_bytes()).hexdigest() in named for one in wheels):
            if f"rankup=={rankup.__version__} " not in named:
                print("note: requirements.lock names another rankup; `rankup env lock` takes this")
        else:
            _put_rankup(path)
    return _setup(path)


def lock(folder: str | None) -> int:
    """Write `requirements.lock`; the exit code. The old one stays where that fails.

    Raises:
        UserError: there is no environment.
    """
    path = state.existing(folder)
    with _explained(path):
        _write_files(path, None)
        _put_rankup(path)
    return _setup(path, "lock")


def _setup(folder: Path, *words: str) -> int:
    """Run `bash setup.sh` there; 0, 1 where it failed, 130 at Ctrl-C."""
    code = _run(["bash", "setup.sh", *words], folder, os.environ)
    return code if code in (0, 130) else EXIT_FAILED


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Run a command in a folder; its exit code, 130 at Ctrl-C.

    It is a session of its own, which ends with this process, however that ends.

    Raises:
        RunFailed: there is no bash.
    """
    sys.stdout.flush()  # what was said so far stands before what it says
    try:
        process = subprocess.Popen(
            ["bash", "-c", _UNTIL_STDIN_ENDS, "bash", *words],  # noqa: S607
            cwd=folder,
            env=environment,
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
    return code


def _put_rankup(folder: Path) -> None:
    """Put a wheel of the rankup that runs into `wheels/`, as the newest there.

    Older ones are removed by setup.sh, within its lock: another process may be installing one.

    Raises:
        RunFailed: pip could not make it.
    """
    source = _source()
    if isinstance(source, Path):
        # What Python has compiled it writes at any first import.
        files = [one for one in source.rglob("*") if "__pycache__" not in one.parts]
        changed = max(one.stat().st_mtime for one in (source, *files))
        if any(one.stat().st_mtime > changed for one in _wheels(folder)):
            return
    elif any(one.name.startswith(f"rankup-{rankup.__version__}-") for one in _wheels(folder)):
        return
    with tempfile.TemporaryDirectory() as work:
        what = str(source)
        if isinstance(source, Path):
            # A copy, since a build leaves its own files behind, and takes old ones along.
            what = os.path.join(work, "source")
            shutil.copytree(source, os.path.join(what, "src"), ignore=_LEFT_OUT)
            for name in ("pyproject.toml", "README.md"):
                shutil.copy(source.parent / name, what)
        python = sys.executable
        if importlib.util.find_spec("pip") is None:  # an environment that uv has made
            python = getattr(sys, "_base_executable", python)
        # Twice quiet: of errors alone, and not of an index of several that lacks rankup.
        words = [python, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", work, what]
        # Equal sources give equal bytes, which a lock names.
        code = _run(words, Path(work), {**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise RunFailed(
                f"pip could not make a wheel of {source}, see above; on a machine with a network "
                f"it can, or put one into {folder / 'wheels'} and run: bash {folder / 'setup.sh'}"
            )
        (folder / "wheels").mkdir(exist_ok=True)
        for wheel in Path(work).glob("*.whl"):
            write_atomic(folder / "wheels" / wheel.name, wheel.read_bytes())


def _source() -> Path | str:
    """The `src` of the source tree that this rankup runs from, else what pip knows it by."""
    package = Path(rankup.__file__).resolve().parent
    if package.parent.name == "src" and (package.parent.parent / "pyproject.toml").is_file():
        return package.parent
    direct = metadata.distribution("rankup").read_text("direct_url.json")
    if not direct:
        return f"rankup=={rankup.__version__}"
    origin = json.loads(direct)
    version = origin.get("vcs_info")
    return f"{version['vcs']}+{origin['url']}@{version['commit_id']}" if version else origin["url"]


def _wheels(folder: Path) -> list[Path]:
    return sorted((folder / "wheels").glob("rankup-*.whl"))


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
