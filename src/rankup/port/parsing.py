"""LibCST's tree of a text that Python's own parser has taken.

LibCST's parser is native code that overflows its stack on deeply nested input and takes the process
along, so it runs in a thread with a large stack, behind the parser that counts its depth.
"""

from __future__ import annotations

import threading

import libcst as cst

_STACK = 256 * 1024 * 1024  # bytes, of which only what is used becomes memory


def parse(text: str) -> cst.Module:
    """The tree of a text.

    Raises:
        RecursionError: it is nested too deeply.
        libcst.ParserSyntaxError: LibCST does not know its syntax.
    """
    result: list[cst.Module | Exception] = []

    def work() -> None:
        try:
            result.append(cst.parse_module(text))
        except Exception as error:
            result.append(error)

    before = threading.stack_size(_STACK)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]
