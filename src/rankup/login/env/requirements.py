"""A requirements.txt with all files that it names: its hash, its packages, and a lock of them.

Standard library only: setup.sh and activate.sh carry this file along, and run it as

    python requirements.py digest|names|lock FILE
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

_DEEPEST = 9
_NAMES_A_FILE = re.compile(rb"[ \t]*(?:-[rc]|--(?:requirement|constraint)[ \t=])[ \t]*([^\s#]+)")
_NAMES_A_FOLDER = re.compile(rb"[ \t]*(?:-e|--editable[ \t=])[ \t]*(?:file://)?([^\s#\[]+)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?=\s*(?:[\[<>=!~;@(]|$))")


def files(path: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the file, those that it names with `-r` and `-c`, relative to itself, and the
    `pyproject.toml` of folders that it names with `-e`, which says what they need.
    """
    yield path
    if depth >= _DEEPEST:
        return
    for line in content(path).split(b"\n"):
        if (match := _NAMES_A_FILE.match(line)) and b"://" not in match[1]:
            name = os.fsdecode(match[1].replace(b"\0", b""))
            yield from files(path.parent / name, depth + 1)
        elif (match := _NAMES_A_FOLDER.match(line)) and b"://" not in match[1]:
            name = os.fsdecode(unquote_to_bytes(match[1]).replace(b"\0", b""))
            yield path.parent / name / "pyproject.toml"


def digest(path: Path) -> str:
    """Return the sha256 of a requirements.txt with all files that it names, in this order."""
    whole = hashlib.sha256()
    for file in files(path):
        whole.update(content(file))
    return whole.hexdigest()


def names(path: Path) -> list[str]:
    """Return the names of the packages that it asks for; of a path or a URL the line, without the
    extras at its end, which a lock has not.
    """
    found = set()
    for file in files(path):
        for text in content(file).decode(errors="replace").splitlines():
            line = re.sub(r"(^|\s)#.*|\\$", "", text).strip()
            if line and not line.startswith(("--", "-r", "-c")):
                name = _NAME.match(line)
                found.add(
                    re.sub(r"[-_.]+", "-", name[0]).lower()
                    if name
                    else re.sub(r"\[[^]]*\]$", "", line)
                )
    return sorted(found)


def locked(report: Path) -> Iterator[str]:
    """Yield the lines of a lock, made of the report of `pip install --dry-run --report`.

    Editable folders are lines without a hash: setup.sh installs them behind all others.
    """
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    for one in sorted(found, key=lambda one: str(one["metadata"]["name"]).lower()):
        name = one["metadata"]["name"].lower().replace("_", "-")
        source = one["download_info"]
        archive = source.get("archive_info", {})
        hashes = dict(archive.get("hashes") or {})
        if not hashes and "=" in archive.get("hash", ""):  # pip before 23
            hashes = dict([archive["hash"].split("=", 1)])
        if source.get("dir_info", {}).get("editable"):
            yield f"-e {source['url']}"
            continue
        direct = f"{name} @ {source['url']}"
        line = direct if one.get("is_direct") else f"{name}=={one['metadata']['version']}"
        yield f"{line} \\\n    --hash=sha256:{hashes['sha256']}" if "sha256" in hashes else line


def content(path: Path) -> bytes:
    """Return its content; nothing of what is no file, or cannot be read."""
    try:
        # A pipe would be waited for.
        return path.read_bytes() if os.path.isfile(path) else b""
    except OSError:
        return b""


def main(what: str, path: Path) -> None:
    """Print one of the three, a line each."""
    if what == "digest":
        print(digest(path))
    else:
        print(*(names(path) if what == "names" else locked(path)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
