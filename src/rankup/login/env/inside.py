"""What the environment's own Python finds in it; run as a file there, where rankup may be missing.

    python inside.py requirements.txt...

prints a JSON object: `requirements`, a list of {text, name, found (version or null), fits};
`conflicts`, lines of `pip check` that the environment has a part in; `torch`, a list of {version,
folder}, the first is imported. Standard library and pip's own copy of packaging only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def main(files: list[str]) -> int:
    """Print the object; 0."""
    found = {
        "requirements": [one for file in files for one in _requirements(file)],
        "conflicts": _conflicts(),
        "torch": _torch(),
    }
    print(json.dumps(found))
    return 0


def _requirements(file: str) -> list[dict[str, Any]]:
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

    found = []
    with open(file, encoding="utf-8", errors="replace") as lines:
        text = re.sub(r"\\\n", " ", lines.read())
    for line in text.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        words = re.split(r"\s--?[a-z]", words)[0].strip()
        if not words or words.startswith("-"):
            continue
        try:
            wanted = Requirement(words)
        except InvalidRequirement:
            continue  # a path or a URL: only pip knows the name of what lies there
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            version = None
        fits = version is not None and wanted.specifier.contains(version, prereleases=True)
        found.append({"text": words, "name": wanted.name, "found": version, "fits": fits})
    return found


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
    """Whether a package that the line names lies in the venv, and not only in modules."""
    names = re.match(r"(\S+)(?: \S+ (?:requires|has requirement) ([\w.-]+))?", line)
    return names is None or any(_in_venv(name) for name in names.groups() if name)


def _in_venv(name: str) -> bool:
    try:
        folder = metadata.distribution(name).locate_file("")
    except metadata.PackageNotFoundError:
        return False
    return Path(str(folder)).resolve().is_relative_to(Path(sys.prefix).resolve())


def _torch() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for one in metadata.distributions(name="torch"):
        folder = str(one.locate_file(""))
        if folder not in [known["folder"] for known in found]:
            found.append({"version": one.version, "folder": folder})
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
