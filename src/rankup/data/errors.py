"""The error that reading a container from elsewhere ends with, and numbers without sense."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from numbers import Integral
from typing import Any

from ..base.errors import UserError

# What zipfile, json, and numpy with the text that is an array's header, raise for bytes by chance.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    ValueError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    TypeError,
    LookupError,
)


class BadContainer(UserError):  # noqa: N818 - it is what was found
    """A container or an index that is damaged, hostile, or not what it seems to be."""


def require_positive(**numbers: Any) -> None:
    """Raise UserError about what is no whole number of 1 or more; None is one left to us."""
    for name, number in numbers.items():
        whole = isinstance(number, Integral) and not isinstance(number, bool)
        if number is not None and (not whole or number < 1):
            raise UserError(f"{name}={number!r} has to be a whole number, 1 or more")
