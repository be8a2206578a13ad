"""rankup's own wheel: built from wherever it runs, always the same bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.version import Version

from rankup import __version__
from rankup.base.errors import RunFailed
from rankup.login.env import wheel

from .conftest import copied_source

pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def built(source: Path) -> tuple[str, bytes]:
    """Name and bytes of the wheel of the copied source tree."""
    return wheel.build(source / "src" / "rankup")


def test_the_same_files_give_the_same_bytes_and_others_another_name(
    built: tuple[str, bytes], tmp_path: Path
) -> None:
    tree = copied_source(tmp_path / "tree") / "src" / "rankup"
    for path in tree.rglob("*"):
        path.touch()
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"x")
    (tree / ".cli.py.swp").write_bytes(b"x")
    assert wheel.build(tree) == built
    (tree / "py.typed").write_text("partial\n")
    assert wheel.build(tree)[0] != built[0]


def test_its_record_names_every_file_with_its_hash(built: tuple[str, bytes]) -> None:
    """And its metadata say what the installed rankup says."""
    name, data = built
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    [record] = [one for one in members if one.endswith(".dist-info/RECORD")]
    assert record == f"{'-'.join(name.split('-')[:2])}.dist-info/RECORD"
    lines = list(csv.reader(io.StringIO(members[record].decode())))
    assert {line[0] for line in lines} == set(members)
    for path, digest, size in lines:
        if path != record:
            want = base64.urlsafe_b64encode(hashlib.sha256(members[path]).digest()).decode()
            assert digest == f"sha256={want.rstrip('=')}"
            assert int(size) == len(members[path])
    assert "rankup/login/env/parts/main.sh" in members
    assert "rankup/site/profiles/juwels-booster.toml" in members
    info = record.rpartition("/")[0]
    said = Parser().parsestr(members[f"{info}/METADATA"].decode())
    assert said["Version"].startswith(f"{__version__}+")
    assert said["Requires-Python"] == ">=3.10"
    assert "typer>=0.12" in said.get_all("Requires-Dist", [])
    assert "torch>=2.8 ; extra == 'train'" in said.get_all("Requires-Dist", [])
    assert "rankup = rankup.cli:main" in members[f"{info}/entry_points.txt"].decode()
    version = Version(name.split("-")[1])
    assert str(version) == name.split("-")[1]
    assert version.public == __version__


def test_from_an_installed_rankup_comes_a_wheel_with_the_same_content(
    built: tuple[str, bytes], source: Path, tmp_path: Path
) -> None:
    """Installed from the wheel: no source tree is beside it."""
    name, data = built
    (tmp_path / name).write_bytes(data)
    installed = tmp_path / "installed"
    with zipfile.ZipFile(tmp_path / name) as archive:
        archive.extractall(installed)
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from rankup.login.env import wheel\n"
        "name, data = wheel.build(); print(name); print(wheel.facts())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [name, repr(wheel.facts(source / "src" / "rankup"))]


def test_a_package_that_nobody_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rankup").mkdir()
    with pytest.raises(RunFailed, match="neither a source tree nor installed"):
        wheel.build(tmp_path / "rankup")


def test_an_older_wheel_is_found_by_a_lock_and_stays(tmp_path: Path) -> None:
    """Another process may be installing it: setup.sh removes it, within its lock."""
    old = tmp_path / "wheels" / "rankup-0.0.1+aa-py3-none-any.whl"
    old.parent.mkdir()
    old.write_bytes(b"old")
    other = old.with_name("mine-1.0-py3-none-any.whl")
    other.write_bytes(b"mine")
    lock = f"rankup==0.0.1+aa --hash=sha256:{hashlib.sha256(b'old').hexdigest()}"
    assert wheel.named_by(lock, tmp_path) == old
    assert wheel.named_by("rankup==0.0.1+aa --hash=sha256:00", tmp_path) is None
    path = wheel.put(old.parent)
    assert sorted(old.parent.iterdir()) == sorted([other, old, path])
    before = path.stat().st_mtime_ns
    assert wheel.put(old.parent) == path
    assert path.stat().st_mtime_ns == before


def test_the_wheel_that_is_put_is_the_newest(tmp_path: Path) -> None:
    """setup.sh installs the newest; the one of an older rankup may have been there before."""
    path = wheel.put(tmp_path)
    os.utime(path, ns=(10**18, 10**18))
    other = tmp_path / "rankup-9.0+aa-py3-none-any.whl"
    other.write_bytes(b"of a newer rankup")
    wheel.put(tmp_path)
    assert path.stat().st_mtime_ns >= other.stat().st_mtime_ns
