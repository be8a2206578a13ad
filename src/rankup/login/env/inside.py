"""Facts that only the environment's own Python knows; run there, where rankup may be missing.

It prints a JSON object: `conflicts`, lines of `pip check` that the environment has a part in;
`torch`, a list of {version, folder}, the first is imported; `broken`, why that fails, else empty.
Standard library only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

# Nothing of the current folder, which may have a random.py, is taken for a library.
_ALONE = "import sys; sys.path = [p for p in sys.path if p]; "
_PIP = "from pip._internal.cli.main import main; sys.exit(main())"


def main() -> None:
    """Print the object."""
    torch = {str(one.locate_file("")): one.version for one in metadata.distributions(name="torch")}
    found = {
        "conflicts": _conflicts(),
        "torch": [{"version": version, "folder": folder} for folder, version in torch.items()],
        "broken": _import_error() if torch else "",
    }
    print(json.dumps(found))


def _import_error() -> str:
    # In a process of its own: a library for another processor ends it without an exception.
    words = [sys.executable, "-c", f"{_ALONE}import torch"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if not done.returncode:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return said[-1] if said else f"exit code {done.returncode}"


def _conflicts() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{_ALONE}{_PIP}", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if not done.returncode:
        return []
    if not done.stdout:
        sys.exit(done.stderr)  # without pip nothing is known
    return [line for line in done.stdout.splitlines() if _is_ours(line)]


def _is_ours(line: str) -> bool:
    """True where a package that the line names lies in the venv, and not only in modules."""
    names = re.match(r"(\S+)(?: \S+ (?:requires|has requirement) ([\w.-]+))?", line)
    return names is None or any(_in_venv(name) for name in names.groups() if name)


def _in_venv(name: str) -> bool:
    try:
        folder = metadata.distribution(name).locate_file("")
    except metadata.PackageNotFoundError:
        return False
    return Path(str(folder)).resolve().is_relative_to(Path(sys.prefix).resolve())


if __name__ == "__main__":
    main()
