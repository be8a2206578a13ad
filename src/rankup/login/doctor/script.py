"""Questions about a script and what rankup.toml lists: imports and data."""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import all_suffixes
from pathlib import Path

from ...base.amounts import some
from ...base.errors import UserError
from ...base.findings import Finding
from ...base.urls import public
from ...script.downloads import Download
from ...script.downloads import read as read_downloads
from ...script.modules import Import
from ...script.modules import imports as read_imports
from .. import record
from ..question import error, ok, question, warning
from .facts import Facts

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


@question("RK525", "the script can be read, and what it imports is there", "script")
def imports(facts: Facts) -> Iterator[Finding]:
    """The script: it is there, is a regular file, and is Python. And every package that it and the
    modules beside it import, and whether this environment has it. Nothing is imported. Imports in
    `try`/`except ImportError` and under `TYPE_CHECKING` may be missing. A job that lacks a package
    fails in its first second, after hours in the queue.

    ```text
    ERROR trian.py    trian.py: No such file or directory; name a script, from where you are or in full [RK525]
    ERROR train.py:4  imports cv2; this environment has no cv2 [RK525]
          -> pip install opencv-python-headless; and add it to requirements.txt
    ```

    Add the package to `requirements.txt` and run `rankup env create`. Names of packages are known
    for the usual modules that are called otherwise (`cv2`, `PIL`, `sklearn`, `yaml`); else the
    module's own name is shown.
    """  # noqa: E501
    if why := unreadable(facts.script):
        yield error(why)
        return
    try:
        found = read_imports(facts.script)
    except UserError as problem:
        yield error(str(problem))
        return
    folder = facts.script.resolve().parent
    tops = dict.fromkeys(one.module.partition(".")[0] for one in found if one.module)
    absent = {top for top in tops if not is_here(top, folder)}
    missing: dict[str, Import] = {}
    for one in found:
        top = one.module.partition(".")[0]
        if top not in absent or one.optional:
            continue
        # An import that runs for certain counts more than one in a function.
        if top not in missing or (missing[top].late and not one.late):
            missing[top] = one
    for top, one in missing.items():
        when = ", in a function" if one.late else ""
        yield error(
            f"imports {one.module}{when}; this environment has no {top}",
            f"pip install {package_of(top)}; and add it to requirements.txt",
            f"{one.file.name or facts.script.name}:{one.line}",
        )
    if not missing:
        message = f"all of the {len(tops)} packages that it imports are here"
        if absent:
            optional = some(sorted(absent))
            message = f"what it imports is here, but for what it can do without: {optional}"
        yield ok(message)


@question("RK526", "what the script fetches is there", "script")
def data(facts: Facts) -> Iterator[Finding]:
    """The record of `rankup fetch` for the script with these arguments: all that a job needs of it
    is still there, the script was proved to start without a network, and the script and the modules
    beside it that it imports are still those that were proved. Where it was never fetched: the
    downloads that reading it finds. Files that the script made for itself
    (`runs/.../config.json`, a first checkpoint) are not asked for.

    Records are looked for in the project, and in the folder of the script.

    Without a network a download in the job fails, and Slurm bills the nodes that wait for it.

    ```text
    WARN  train.py  it downloads, was never fetched, and compute nodes have no internet (line 12: dataset wikitext-2) [RK526]
          -> rankup fetch train.py, with its arguments
    WARN  train.py  2 items fetched on 2026-11-20T10:00:00+00:00 are there; changed since it was fetched: model.py [RK526]
          -> rankup fetch train.py --lr 1
    ```

    It is an error where something is gone, or where the start without a network failed:
    `rankup run` refuses then.

    `rankup fetch SCRIPT ARGS` on the login node brings the data, and proves that it is enough.
    Where only a comment was changed, `rankup fetch --only-proof SCRIPT ARGS` is quicker; or leave
    it: the job is submitted all the same.
    """  # noqa: E501
    if unreadable(facts.script):
        return
    try:
        downloads = read_downloads(facts.script, facts.args).downloads
    except UserError:  # RK525 says why
        return
    found, exact = record.of_script(facts.project, facts.script, facts.args)
    if found is None:
        yield _never_fetched(facts, downloads)
    else:
        yield _fetched(facts, found, exact)


@question("RK527", "what rankup.toml lists is there", "[fetch]")
def needs(facts: Facts) -> Iterator[Finding]:
    """The list in `[fetch]` of `rankup.toml` (data sets, models, URLs, scripts), and what of it was
    not fetched or is gone. A script has to have been proved to start without a network. A script
    that does not exist is named by its entry. `rankup run` refuses to submit while something is
    missing.

    ```text
    ERROR [fetch]  model gpt2: not fetched [RK527]
          -> rankup fetch --model gpt2
    ERROR [fetch]  fetch.scripts[0] in /project/me/p/rankup.toml: no such file: trian.py [RK527]
          -> mend it there
    ```

    `rankup fetch` without arguments brings all that is listed. `rankup run --allow-missing` submits
    without it.
    """
    if facts.unmet == []:
        yield ok("all that rankup.toml lists is there")
    for lacking in facts.unmet or ():
        yield error(f"{lacking.what}: {lacking.why}", lacking.todo)


def package_of(module: str) -> str:
    """Return the name that pip knows a module's package by, as far as can be told."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top.replace("_", "-"))


def is_here(module: str, folder: Path) -> bool:
    """Return True where a script in `folder` can import a module; nothing is imported."""
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


def unreadable(script: Path) -> str:
    """Return why a script cannot be read, empty if it can."""
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


def _fetched(facts: Facts, found: record.Record, exact: bool) -> Finding:
    """The answer to a record, which is or is not of these arguments."""
    again = _fetch(facts)
    if faults := found.faults():
        return error(f"fetched on {found.at}, and now: {some(faults)}", again)
    count = len(found.items)
    items = f"{count} items fetched on {found.at} are there"
    if count == 1:
        items = f"1 item fetched on {found.at} is there"
    if not count:
        items = f"fetched on {found.at}, and it brought nothing"
    if doubts := found.doubts():
        return warning(f"{items}; {some(doubts)}", again)
    if not exact:
        todo = f"{again} where these ask for other data"
        return warning(f"{items}; that was with other arguments", todo)
    return ok(f"{items}; it started without a network ({record.HOW[found.proof]})")


def _never_fetched(facts: Facts, downloads: Sequence[Download]) -> Finding:
    if not downloads:
        return ok("reading it finds nothing that it downloads")
    lines = [f"line {one.line}: {one.what} {_shown(one.name)}".rstrip() for one in downloads]
    calls = some(lines, 3)
    if facts.profile.name == "local":
        return ok(f"it downloads by itself when it starts ({calls})")
    if facts.internet:
        return ok(f"it downloads by itself, and compute nodes have internet ({calls})")
    nodes = "have no internet" if facts.internet is False else "may be offline"
    message = f"it downloads, was never fetched, and compute nodes {nodes} ({calls})"
    return warning(message, _fetch(facts) + ("" if facts.args else ", with its arguments"))


def _fetch(facts: Facts) -> str:
    """The command that fetches for the script."""
    return record.command_line(["rankup", "fetch", str(facts.script), *facts.args])


def _shown(name: str | None) -> str:
    """A name; of a URL neither user, password nor query, which may be secret."""
    return public(name) if name and "://" in name else name or ""
