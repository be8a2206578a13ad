"""Pickles of dicts, strings and whole numbers, as people keep `path -> label`; nothing else.

A pickle is a program. Of its instructions only those that make these three types are known here,
so that there is nothing which a hostile one could call. It is Python's own interpreter in Python:
the one in C reserves as much memory as a pickle asks for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ...base.errors import UserError
from ..errors import BadContainer

_ALLOWED = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.UNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.STRING, pickle.SHORT_BINSTRING, pickle.BINSTRING),  # of Python 2
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG, pickle.LONG1, pickle.LONG4),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
    *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL),  # both end in `find_class`, which names what it was
)


class _Restricted(pickle._Unpickler):  # type: ignore[name-defined,misc]
    def find_class(self, module: str, name: str) -> NoReturn:
        advice = "write numbers as int(label), paths as str(path)"
        raise UserError(f"it holds {module}.{name}, not only dict, str and int: {advice}")


def _refused(code: int) -> Callable[[Any], NoReturn]:
    def refuse(_: Any) -> NoReturn:
        raise UserError(
            f"it holds more than dict, str and int (its instruction {bytes([code])!r}): write a "
            "dict of path -> label"
        )

    return refuse


_Restricted.dispatch = {
    **{code: _refused(code) for code in range(256)},
    **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _ALLOWED},  # type: ignore[attr-defined]
}


def load(path: Path) -> dict[str, Any]:
    """The dict in a pickle of any protocol; its values are dicts, strings and ints.

    Raises:
        UserError: there is something else in it, which is named.
        BadContainer: it is no pickle, or damaged.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        value = _Restricted(io.BytesIO(data), encoding="utf-8", errors="surrogateescape").load()
    except UserError as error:
        raise UserError(f"{path} is not unpickled: {error}") from None
    except RecursionError:
        raise
    except Exception as error:  # an interpreter of hostile input: any kind of error may come
        raise BadContainer(f"{path} is no pickle, or a damaged one: {error!r}"[:500]) from None
    if type(value) is not dict:
        raise UserError(f"{path} holds a {type(value).__name__}, not a dict of path -> label")
    return value
