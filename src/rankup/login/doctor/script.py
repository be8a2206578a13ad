"""A script: what it imports is in this environment, and what it fetches has been fetched."""

from __future__ import annotations

import importlib.util
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ...base.findings import Finding
from ...site.profile import Profile
from ..reading import Download, Import
from ..record import Record
from . import codes
from .amounts import some

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
    if (folder / f"{top}.py").exists() or (folder / top).is_dir():
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):  # a loader of somebody's that does not know
        return False


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
    script: Path,
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
    again = shlex.join(["rankup", "fetch", str(script)])
    found, exact = fetched
    if found is None:
        return _never_fetched(script, profile, internet, downloads)
    if missing := found.missing():
        message = f"fetched on {found.at}, and missing now: {some(missing)}"
        return [Finding(codes.DATA, "error", script.name, message, again)]
    if found.proof == "failed":
        note = f": {found.note}" if found.note else ""
        message = f"without a network it did not start{note}"
        return [Finding(codes.DATA, "error", script.name, message, again)]
    items = f"{len(found.items)} items fetched on {found.at} are there"
    if not exact:
        message = f"{items}; that was with other arguments"
        todo = f"{again} with these, where they ask for other data"
        return [Finding(codes.DATA, "warning", script.name, message, todo)]
    if found.proof == "none":
        why = f" ({found.note})" if found.note else ""
        message = f"{items}; that they are enough was not proved{why}"
        return [Finding(codes.DATA, "warning", script.name, message, f"{again} --only-proof")]
    how = "in a network namespace" if found.proof == "namespace" else "with blocked sockets"
    message = f"{items}; it started without a network ({how})"
    return [Finding(codes.DATA, "ok", script.name, message)]


def check_needs(unmet: Sequence[str]) -> list[Finding]:
    """What `[fetch]` of rankup.toml lists and is not there.

    Args:
        unmet: `WHAT: WHY; WHAT TO DO`, a line for each thing, see `login.needs`.
    """
    if not unmet:
        message = "all that rankup.toml lists is there"
        return [Finding(codes.NEEDS, "ok", "[fetch]", message)]
    found = []
    for line in unmet:
        # The line ends with what to do about it.
        why, _, todo = line.rpartition("; ")
        message, todo = (why, todo) if why else (line, "rankup fetch")
        found.append(Finding(codes.NEEDS, "warning", "[fetch]", message, todo))
    return found


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
    script: Path, profile: Profile, internet: bool | None, downloads: Sequence[Download]
) -> list[Finding]:
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
            shlex.join(["rankup", "fetch", str(script)]) + ", with its arguments",
        )
    ]


def _shown(name: str | None) -> str:
    """A name; of a URL neither user, password nor query, which may be secret."""
    if name is None or "://" not in name:
        return name or ""
    try:
        parts = urlsplit(name)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:  # brackets that do not match
        return "a URL"
