"""A script: what it imports is in this environment, and what it fetches has been fetched."""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path

from ...base.amounts import some
from ...base.findings import Finding
from ...base.urls import public
from ...script.downloads import Download
from ...script.modules import Import
from ...site.profile import Profile
from .. import words
from ..needs import Unmet
from ..record import Record
from . import codes

# Modules whose package has another name; for the others it is their own.
_PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cairosvg": "CairoSVG",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",  # nodes have no display, and often no libGL
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "GitPython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "imagehash": "ImageHash",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "osgeo": "gdal",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pl_bolts": "lightning-bolts",
    "pynvml": "nvidia-ml-py",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


@dataclass(frozen=True)
class Command:
    """A script with its arguments, as they were typed."""

    script: Path
    args: tuple[str, ...] = ()

    @property
    def fetch(self) -> str:
        """What fetches for it."""
        return words.command(["rankup", "fetch", str(self.script), *self.args])


def package_of(module: str) -> str:
    """The name that pip knows a module's package by, as far as can be told."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top.replace("_", "-"))


def is_here(module: str, folder: Path) -> bool:
    """Whether a script in `folder` can import a module's package; nothing is imported."""
    top = module.partition(".")[0]
    if not top.isidentifier():
        return False
    if top in sys.stdlib_module_names or top == "__main__":
        return True
    files = [f"{top}/__init__.py", *(f"{top}{suffix}" for suffix in all_suffixes())]
    if any((folder / name).exists() for name in files):
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):  # a loader of somebody's that does not know
        return False
    if spec is None or spec.origin is not None:
        return spec is not None
    # Folders without an __init__.py. `wandb/` beside the script is what wandb writes there, no
    # package; one with modules that the script imports is no import from elsewhere.
    beside = {folder.resolve(), Path.cwd()}
    return any(
        Path(one).resolve().parent not in beside for one in spec.submodule_search_locations or ()
    )


def check_imports(
    script: Path, imports: Sequence[Import], here: Callable[[str], bool]
) -> list[Finding]:
    """Every package that the script imports and this environment lacks, with what installs it.

    Args:
        here: whether a module can be imported.
    """
    missing: dict[str, Import] = {}
    tops = {one.module.partition(".")[0]: one for one in imports if one.module}
    absent = {top for top in tops if not here(top)}
    for one in imports:
        top = one.module.partition(".")[0]
        if top not in absent or one.optional:
            continue
        # An import that runs for certain counts more than one in a function.
        if top not in missing or (missing[top].late and not one.late):
            missing[top] = one
    found = [_missing(script, top, one) for top, one in missing.items()]
    optional = sorted(absent - set(missing))
    if not found:
        message = f"all of the {len(tops)} packages that it imports are here"
        if optional:
            message = f"what it imports is here, but for what it can do without: {some(optional)}"
        found.append(Finding(codes.IMPORTS, "ok", script.name, message))
    return found


def check_data(
    command: Command,
    profile: Profile,
    internet: bool | None,
    fetched: tuple[Record | None, bool],
    downloads: Sequence[Download],
) -> list[Finding]:
    """Whether what the script fetches is there, was proved to be enough, or was never fetched.

    Args:
        internet: of compute nodes; None: not known.
        fetched: the script's record, and whether it is of these arguments (`record.of_script`).
        downloads: what reading the script has found.
    """
    again, name = command.fetch, command.script.name
    found, exact = fetched
    if found is None:
        return _never_fetched(command, profile, internet, downloads)
    if faults := found.faults():
        message = f"fetched on {found.at}, and now: {some(faults)}"
        return [Finding(codes.DATA, "error", name, message, again)]
    count = len(found.needed)
    items = f"{count} items fetched on {found.at} are there"
    if count == 1:
        items = f"1 item fetched on {found.at} is there"
    if not count:
        items = f"fetched on {found.at}, and it brought nothing"
    if doubts := found.doubts():
        return [Finding(codes.DATA, "warning", name, f"{items}; {some(doubts)}", again)]
    if not exact:
        message = f"{items}; that was with other arguments"
        todo = f"{again} where these ask for other data"
        return [Finding(codes.DATA, "warning", name, message, todo)]
    how = "in a network namespace" if found.proof == "namespace" else "with blocked sockets"
    return [Finding(codes.DATA, "ok", name, f"{items}; it started without a network ({how})")]


def check_needs(unmet: Sequence[Unmet]) -> list[Finding]:
    """What `[fetch]` of rankup.toml lists and is not there; `rankup run` refuses without it."""
    if not unmet:
        message = "all that rankup.toml lists is there"
        return [Finding(codes.NEEDS, "ok", "[fetch]", message)]
    return [
        Finding(codes.NEEDS, "error", "[fetch]", f"{one.what}: {one.why}", one.todo)
        for one in unmet
    ]


def check_ported(path: Path, found: Sequence[Finding]) -> list[Finding]:
    """What `rankup check` found in a script, in one line."""
    if not found:
        message = "nothing in it stands in the way of many ranks"
        return [Finding(codes.PORTED, "ok", path.name, message)]
    rules = some(sorted({one.code for one in found}))
    count = f"{len(found)} thing{'s' if len(found) > 1 else ''}"
    message = f"{count} in it would be wrong on many ranks ({rules})"
    todo = (
        f"{words.command(['rankup', 'check', str(path)])} says what; rankup port mends most of it"
    )
    return [Finding(codes.PORTED, "warning", path.name, message, todo)]


def unreadable(script: Path) -> str:
    """Why a script cannot be read, empty if it can."""
    try:
        kind = script.stat().st_mode
        if stat.S_ISDIR(kind):
            return f"{script} is a folder; name the script in it"
        if not stat.S_ISREG(kind):  # a pipe would be waited for
            return f"{script} is no regular file"
        with script.open("rb"):
            return ""
    except OSError as error:
        return f"{script}: {error.strerror}; name a script, from where you are or in full"


def _missing(script: Path, top: str, one: Import) -> Finding:
    place = f"{one.file.name if one.file.name else script.name}:{one.line}"
    when = ", in a function" if one.late else ""
    return Finding(
        codes.IMPORTS,
        "error",
        place,
        f"imports {one.module}{when}; this environment has no {top}",
        f"pip install {package_of(top)}; and add it to requirements.txt",
    )


def _never_fetched(
    command: Command, profile: Profile, internet: bool | None, downloads: Sequence[Download]
) -> list[Finding]:
    script = command.script
    if not downloads:
        message = "reading it finds nothing that it downloads"
        return [Finding(codes.DATA, "ok", script.name, message)]
    lines = [f"line {one.line}: {one.what} {_shown(one.name)}".rstrip() for one in downloads]
    calls = some(lines, 3)
    if profile.name == "local":
        message = f"it downloads by itself when it starts ({calls})"
        return [Finding(codes.DATA, "ok", script.name, message)]
    if internet:
        message = f"it downloads by itself, and compute nodes have internet ({calls})"
        return [Finding(codes.DATA, "ok", script.name, message)]
    nodes = (
        "compute nodes have no internet" if internet is False else "compute nodes may be offline"
    )
    return [
        Finding(
            codes.DATA,
            "warning",
            script.name,
            f"it downloads, was never fetched, and {nodes} ({calls})",
            command.fetch + ("" if command.args else ", with its arguments"),
        )
    ]


def _shown(name: str | None) -> str:
    """A name; of a URL neither user, password nor query, which may be secret."""
    return public(name) if name and "://" in name else name or ""
