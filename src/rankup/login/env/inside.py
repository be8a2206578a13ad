"""Facts that only the environment's own Python knows; run there, where rankup may be missing.

    python inside.py requirements.txt...

prints a JSON object: `requirements`, a list of {text, found (version or null), fits}; `conflicts`,
lines of `pip check` that the environment has a part in; `torch`, a list of {version, folder}, the
first is imported. Standard library and pip's own copy of packaging only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any


def main(files: list[str]) -> None:
    """Print the object."""
    torch = {str(one.locate_file("")): one.version for one in metadata.distributions(name="torch")}
    found = {
        "requirements": [one for file in files for one in _requirements(file)],
        "conflicts": _conflicts(),
        "torch": [{"version": version, "folder": folder} for folder, version in torch.items()],
    }
    print(json.dumps(found))


def _requirements(file: str) -> Iterator[dict[str, Any]]:
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

    text = Path(file).read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for line in text.splitlines():
        words = re.split(r"(?:^|\s)(?:#|--?[a-z])", line)[0].strip()
        try:
            wanted = Requirement(words)
        except InvalidRequirement:
            continue  # an option; a path or a URL: only pip knows the name of what lies there
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            version = None
        fits = version is not None and wanted.specifier.contains(version, prereleases=True)
        yield {"text": words, "found": version, "fits": fits}


def _conflicts() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if not done.returncode:
        return []
    lines = done.stdout.splitlines()
    return [line for line in lines if _is_ours(line)] if lines else done.stderr.splitlines()[-1:]


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
    main(sys.argv[1:])
