"""Tiny wheels in a folder that takes the place of a package index, and installed stand-ins."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from rankup import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parents[3]
_PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What rankup needs on every Python; each is there as an empty package.
_DEPENDENCIES = tuple(
    one for one in map(Requirement, _PROJECT["dependencies"]) if one.marker is None
)


def wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a wheel whose only module says its version: `NAME.VERSION`."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    members: dict[str, str | bytes] = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n",
        **(files or {}),
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    data = {name: one.encode() if isinstance(one, str) else one for name, one in members.items()}
    record = "".join(f"{name},{_hash(one)},{len(one)}\n" for name, one in data.items())
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, one in data.items():
            archive.writestr(zipfile.ZipInfo(name), one)  # without a time: always the same bytes
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{record}{info}/RECORD,,\n")
    return path


def rankup(folder: Path) -> Path:
    """Write the wheel of this rankup, as if it had been released."""
    source = CHECKOUT / "src" / "rankup"
    files: dict[str, str | bytes] = {
        f"rankup/{path.relative_to(source)}": path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    points = "[console_scripts]\nrankup = rankup.cli:main\n"
    files[f"rankup-{__version__}.dist-info/entry_points.txt"] = points
    return wheel(folder, "rankup", __version__, _PROJECT["dependencies"], files)


def dependencies(folder: Path) -> None:
    """A stand-in of each package that rankup needs, of the oldest version that will do."""
    for one in _DEPENDENCIES:
        [oldest] = (bound.version for bound in one.specifier if bound.operator == ">=")
        wheel(folder, one.name, oldest)
    for text in _PROJECT["optional-dependencies"]["train"]:
        one = Requirement(text)
        if one.name != "torch":
            wheel(folder, one.name, "99.0")
    wheel(folder, "tomli", "2.0.1")


def installed(folder: Path, name: str) -> None:
    """Write a wheel of a package that the tests' own Python has."""
    found = metadata.distribution(name)
    with zipfile.ZipFile(folder / f"{name}-{found.version}-py3-none-any.whl", "w") as archive:
        for one in found.files or ():
            if "__pycache__" not in one.parts:
                archive.write(str(found.locate_file(one)), str(one))


def unpacked(folder: Path, path: Path) -> None:
    """Lay a wheel out in a folder, as a module of a site has its packages."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)


def _hash(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
