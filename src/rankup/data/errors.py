"""The one error that reading a container from elsewhere ends with, and what it is made of."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

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
