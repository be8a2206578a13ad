"""Which installer is taken: pip where only its settings say what uv would have to know."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

_PACKAGES = resources.files("rankup.login.env") / "parts" / "packages.sh"
# The files of the machine that the tests run on say nothing here.
_PARTS = _PACKAGES.read_text(encoding="utf-8").replace(" /etc/", " /nowhere/")
_SCRIPT = f"""
set -euo pipefail
say() {{ :; }}
ENV_KIND=wheels ENV_INSTALLER=
{_PARTS}
find_installer
echo "$installer"
"""


def _taken(home: Path, **variables: str) -> str:
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / "uv").write_text("#!/bin/sh\n")
    (home / "bin" / "uv").chmod(0o755)
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", _SCRIPT],
        env={"HOME": str(home), "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "installer"),
    [
        ({}, "uv"),
        ({"PIP_INDEX_URL": "i"}, "pip"),
        ({"PIP_INDEX_URL": "i", "UV_DEFAULT_INDEX": "i"}, "uv"),
        ({"PIP_CONSTRAINT": "c", "UV_CONSTRAINT": "c"}, "uv"),
        ({"PIP_CONSTRAINT": "c", "PIP_NO_INDEX": "1", "UV_CONSTRAINT": "c"}, "pip"),
    ],
)
def test_by_variables(variables: dict[str, str], installer: str, tmp_path: Path) -> None:
    assert _taken(tmp_path, **variables) == installer


@pytest.mark.parametrize(
    ("pip", "uv", "installer"),
    [
        ("[global]\nindex-url = i\n", None, "pip"),
        ("[global]\ntimeout = 60\n", None, "uv"),
        ("[global]\nindex-url = i\n", '[[index]]\nurl = "i"\n', "uv"),
        ("[global]\nindex-url = i\n", 'native-tls = true\nindex-strategy = "x"\n', "pip"),
        ("[install]\nconstraint = c\n", '[[index]]\nurl = "i"\n', "pip"),
    ],
)
def test_by_files(pip: str, uv: str | None, installer: str, tmp_path: Path) -> None:
    for name, text in (("pip/pip.conf", pip), ("uv/uv.toml", uv)):
        if text is not None:
            file = tmp_path / ".config" / name
            file.parent.mkdir(parents=True)
            file.write_text(text)
    assert _taken(tmp_path) == installer
