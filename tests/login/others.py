"""Another user of a shared folder, who may not change what is somebody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NOBODY = 65534
# What is imported later could lie where only root may read.
_BEGIN = """
import encodings.idna, getpass, importlib.resources, os, shutil, sys
from pathlib import Path
import rankup.base.lock, rankup.login.fetch.things, rankup.login.fetch.download
target = Path(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(*[int(sys.argv[2])] * 3)
    os.setresuid(*[int(sys.argv[2])] * 3)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which everybody may create and rename; those above `tmp_path` are private."""
    folder = Path(tempfile.mkdtemp(prefix="rankup-shared-"))
    folder.chmod(0o777)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def as_another_user(code: str, target: Path, *args: str) -> str:
    """What `code` prints, with `target` and `sys.argv[3:]`; it has no right to files of mode 0.

    Root hands its rights over; everybody else has none on such files of their own.
    """
    words = [sys.executable, "-c", _BEGIN + code, str(target), str(_NOBODY), *args]
    environment = {**os.environ, "HOME": "/", "USER": "nobody"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, cwd="/", env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
