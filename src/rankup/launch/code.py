"""The state of the user's code, kept with the run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ..base.files import write_atomic

MOST_BYTES = 20 * 2**20  # a diff larger than this is data
_MOST_NAMES = 200
# Whatever the user's settings make of a diff that is looked at, this one has to apply.
_DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")


def state(folder: Path) -> dict[str, Any]:
    """Commit of the folder's repository and what is not in it; empty outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    untracked = (_git(folder, "ls-files", "--others", "--exclude-standard", "-z") or b"").split(
        b"\0"
    )
    names = [name.decode(errors="replace") for name in untracked if name]
    found: dict[str, Any] = {
        "commit": commit.decode().strip(),
        "changed": bool(_git(folder, "status", "--porcelain")),
    }
    if names:
        found["untracked"] = names[:_MOST_NAMES]
    return found


def keep(folder: Path, target: Path | None, directory: Path) -> None:
    """Write what differs from the commit into the run directory, readable by its owner.

    `code.diff` is what `git apply` takes on the commit that `job.json` names. The script itself is
    copied as well where commit and diff do not hold it.
    """
    diff = _git(folder, *_DIFF, *_PREFIXES, "HEAD")
    known = diff is not None and len(diff) <= MOST_BYTES
    if diff and known:
        write_atomic(directory / "code.diff", diff, private=True)
    if target is None:
        return
    if not known or _git(folder, "ls-files", "--error-unmatch", str(target)) is None:
        write_atomic(directory / target.name, target.read_bytes(), private=True)


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "--literal-pathspecs", "-C", str(folder), *words],  # noqa: S607 - the user's own git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
