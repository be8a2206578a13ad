"""Tiny wheels in a folder that takes the place of a package index, and installed stand-ins."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rankup.login.env.wheel import facts

# What rankup needs on every Python; each is there as an empty package.
_DEPENDENCIES = tuple(re.split(r"[<>=!~ ]", one)[0] for one in facts().requires if ";" not in one)


def wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel whose only module says its version: `NAME.VERSION`."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    members = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n",
        **(files or {}),
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{one},{_hash(text)},{len(text)}\n" for one, text in members.items())
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for one, text in members.items():
            archive.writestr(zipfile.ZipInfo(one), text)  # without a time: always the same bytes
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{record}{info}/RECORD,,\n")
    return path


def dependencies(folder: Path) -> None:
    """A stand-in of each package that rankup needs."""
    for name in _DEPENDENCIES:
        wheel(folder, name, metadata.version(name))
    wheel(folder, "tomli", "2.0.1")


def unpacked(folder: Path, path: Path) -> None:
    """Lay a wheel out in a folder, as a module of a site has its packages."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
