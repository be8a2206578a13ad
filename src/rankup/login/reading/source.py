"""One file of Python, parsed; whatever it is, this ends soon and without a traceback."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

# To be read that takes some seconds and some hundred megabytes.
MOST_BYTES = 1_000_000


class NotRead(Exception):  # noqa: N818 - said to the user, not raised at them
    """Why a file cannot be read, in one line that names it."""


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file, whose encoding is what it declares, else UTF-8.

    Raises:
        NotRead: it is not there, too large, not Python, or nested too deeply.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotRead(f"{path}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise NotRead(f"{path}: larger than {MOST_BYTES // 1_000_000} MB, which is not read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own: "invalid escape sequence"
            return ast.parse(data, str(path))
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise NotRead(f"{place}: not Python: {error.msg}") from None
    except (ValueError, LookupError) as error:  # null bytes, an encoding nobody knows
        raise NotRead(f"{path}: not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise NotRead(f"{path}: nested too deeply to be read") from None
