"""The files of a script's own code, by their content: have they changed since it was fetched?"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..base.errors import UserError

# Nobody writes more than this into a file of code; a record may name any file.
_MOST_BYTES = 16_000_000


def digests(script: Path) -> dict[str, str]:
    """sha256 of a script, and of the modules beside it that it imports, by absolute path.

    They are found by reading; where the script cannot be read, it is the only one.
    """
    from ..script.modules import gather  # for `fetch` alone: `run` compares, and reads nothing

    paths = [script.resolve()]
    with suppress(UserError):
        paths += [file.path.resolve() for file in gather(paths[0]).files]
    return {str(path): digest for path in dict.fromkeys(paths) if (digest := _digest(str(path)))}


def changed(code: Mapping[str, str]) -> list[str]:
    """The paths of `digests` whose files are others now, or are gone."""
    return [path for path, digest in code.items() if _digest(path) != digest]


def _digest(path: str) -> str:
    """Of a regular file that is no larger than code is; else empty."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return ""  # a pipe would be waited for
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(_MOST_BYTES)).hexdigest()
    except (OSError, ValueError):
        return ""
