"""A wheel of the rankup that runs, wherever that comes from: installed, editable, a source tree.

The same files always give the same bytes: sorted, stored uncompressed (what zlib makes differs
from machine to machine), without times. The version ends in a hash of the content
(`0.1.0+1a2b3c4d5e6f`), so that pip sees a change, and so that a lock names exactly this one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import rankup

from ...base.errors import RunFailed
from ...base.files import write_atomic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_NAME = "rankup"
_PACKAGE = Path(rankup.__file__).resolve().parent
_LEFT_OUT = re.compile(r"\.|.*(~|\.py[co])$|__pycache__$")


@dataclass(frozen=True)
class Facts:
    """What a wheel says of its package.

    Attributes:
        requires: one requirement each, with markers, those of extras too.
        scripts: command -> `module:function`.
    """

    version: str
    summary: str
    python: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    scripts: Mapping[str, str] = field(default_factory=dict)


def facts(package: Path = _PACKAGE) -> Facts:
    """Those of the package in this folder: of `pyproject.toml` in a source tree, else installed.

    An editable installation has a copy of `pyproject.toml`, which may be older than the file.

    Raises:
        RunFailed: this rankup is neither.
    """
    project = package.parent.parent / "pyproject.toml"
    if package.parent.name == "src" and project.is_file():
        said = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        if said["name"] == _NAME:
            return _of_project(said)
    for found in metadata.distributions(name=_NAME):
        if Path(str(found.locate_file(_NAME))).resolve() == package:
            return _of_distribution(found)
    raise RunFailed(
        f"rankup in {package} is neither a source tree nor installed, so that it cannot be put "
        "into an environment; install it with pip"
    )


def build(package: Path = _PACKAGE) -> tuple[str, bytes]:
    """File name and content of the wheel of the package in this folder.

    Raises:
        RunFailed: as `facts`.
    """
    said, files = facts(package), _files(package)
    content = hashlib.sha256()
    described = _metadata(said, said.version) + _entry_points(said)
    for name, data in ((_NAME, described.encode()), *files.items()):
        content.update(f"{name}\0{len(data)}\0".encode() + data)
    mark = content.hexdigest()[:12]
    version = f"{said.version}{'.' if '+' in said.version else '+'}{mark}"
    info = f"{_NAME}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": _metadata(said, version).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: rankup\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": _entry_points(said).encode(),
    }
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return f"{_NAME}-{version}-py3-none-any.whl", _zip(members)


def put(folder: Path) -> Path:
    """Put the wheel of the rankup that runs into `folder`, as the newest there; its path.

    Raises:
        OSError: it could not be written.
    """
    folder.mkdir(exist_ok=True)
    name, data = build()
    path = folder / name
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)
    elif any(_written(other) > _written(path) for other in _wheels(folder)):
        os.utime(path)
    return path


def named_by(lock: str, environment: Path) -> Path | None:
    """The wheel of rankup in `wheels/` of an environment that the text of its lock names."""
    for path in _wheels(environment / "wheels"):
        with suppress(FileNotFoundError):  # another process has just replaced it
            if f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in lock:
                return path
    return None


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_NAME}-*.whl"))


def _written(path: Path) -> int:
    """When, in ns; 0 where it is gone."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def _of_project(said: Mapping[str, object]) -> Facts:
    extras = said.get("optional-dependencies", {})
    requires, scripts = said.get("dependencies", []), said.get("scripts", {})
    assert isinstance(extras, dict)
    assert isinstance(requires, list)
    assert isinstance(scripts, dict)
    of_extras = [
        f"{one} ; extra == '{extra}'" if ";" not in one else _and_extra(one, extra)
        for extra, ones in extras.items()
        for one in ones
    ]
    return Facts(
        version=str(said["version"]),
        summary=str(said.get("description", "")),
        python=str(said.get("requires-python", "")),
        requires=(*requires, *of_extras),
        extras=tuple(extras),
        scripts=dict(scripts),
    )


def _and_extra(requirement: str, extra: str) -> str:
    what, _, marker = requirement.partition(";")
    return f"{what.strip()} ; ({marker.strip()}) and extra == '{extra}'"


def _of_distribution(found: metadata.Distribution) -> Facts:
    said = found.metadata
    points = found.entry_points.select(group="console_scripts")
    return Facts(
        version=said["Version"].split("+")[0],
        summary=said["Summary"] or "",
        python=said["Requires-Python"] or "",
        requires=tuple(found.requires or ()),
        extras=tuple(said.get_all("Provides-Extra") or ()),
        scripts={point.name: point.value for point in points},
    )


def _files(package: Path) -> dict[str, bytes]:
    """The package's files by their name in the wheel, sorted; caches and hidden ones left out."""
    found = {}
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(package)
        if path.is_file() and not any(_LEFT_OUT.match(part) for part in inside.parts):
            found[f"{_NAME}/{inside.as_posix()}"] = path.read_bytes()
    return found


def _metadata(said: Facts, version: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {_NAME}", f"Version: {version}"]
    lines += [f"Summary: {said.summary}"] if said.summary else []
    lines += [f"Requires-Python: {said.python}"] if said.python else []
    lines += [f"Requires-Dist: {one}" for one in said.requires]
    lines += [f"Provides-Extra: {one}" for one in said.extras]
    return "\n".join(lines) + "\n"


def _entry_points(said: Facts) -> str:
    lines = [f"{name} = {value}" for name, value in sorted(said.scripts.items())]
    return "\n".join(["[console_scripts]", *lines]) + "\n"


def _hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _zip(members: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.create_system = 3  # Unix, also where it is not: the bytes are to be the same
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return whole.getvalue()
