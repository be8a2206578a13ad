"""Text to tree, or why not: whatever the text is, this process goes on.

LibCST's parser is native code that overflows its stack on deeply nested input and takes the process
along. So Python's own parser, which counts its depth, looks first, and LibCST gets a thread with a
large stack. What this Python refuses may be the syntax of a newer one: then a child process tries.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass

import libcst as cst

from ..base.text import clean

_STACK = 256 * 1024 * 1024  # bytes, of which only what is used becomes memory
_CHILD_SECONDS = 30
_CHILD = """
import sys, threading, libcst
threading.stack_size({stack})
text = sys.stdin.buffer.read().decode()
def work():
    try:
        libcst.parse_module(text)
    except BaseException:
        pass
    print("alive", flush=True)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@dataclass(frozen=True)
class Trouble:
    """Why a file cannot be understood; line and column count from 1."""

    line: int
    column: int
    message: str
    todo: str = ""


def parse(text: str) -> cst.Module | Trouble:
    """The tree of a text, or where and why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes: not what was asked
            ast.parse(text)
    except SyntaxError as error:
        return _refused(text, error)
    except (RecursionError, MemoryError):
        return Trouble(1, 1, "nested too deeply to be understood")
    except ValueError as error:
        return Trouble(1, 1, clean(str(error)))
    return _in_thread(text)


def _refused(text: str, error: SyntaxError) -> cst.Module | Trouble:
    """A text that this Python does not take: of a newer one, or wrong."""
    trouble = _explained(text, error)
    if "too many" in (error.msg or "") or not _survives(text):
        return trouble
    parsed = _in_thread(text)
    return trouble if isinstance(parsed, Trouble) else parsed


def _explained(text: str, error: SyntaxError) -> Trouble:
    line, column = error.lineno or 1, max(1, error.offset or 1)
    message = f"no valid Python: {clean(error.msg or 'syntax error')}"
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if re.search(r"\basync\s*=", here):
        todo = "`async` is a keyword since Python 3.7: write non_blocking=True"
        return Trouble(line, column, message, todo)
    if re.match(r"\s*print\s+[^(=]", here):
        return Trouble(line, column, message, "Python 2: run `2to3 -w` on it first")
    if re.match(r"(<<<<<<<|=======|>>>>>>>)", here):
        return Trouble(line, column, message, "a conflict of `git merge` is left: resolve it")
    return Trouble(line, column, message, "mend it at this place")


def _survives(text: str) -> bool:
    """Whether LibCST's parser gets over this text, asked in a process of its own."""
    program = _CHILD.format(stack=_STACK)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=text.encode(errors="replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"alive" in done.stdout


def _in_thread(text: str) -> cst.Module | Trouble:
    result: list[cst.Module | Trouble] = []

    def work() -> None:
        try:
            result.append(cst.parse_module(text))
        except cst.ParserSyntaxError as error:
            message = clean(error.message.split(".")[0])
            result.append(Trouble(error.raw_line, error.raw_column + 1, message))
        except (RecursionError, MemoryError):
            result.append(Trouble(1, 1, "nested too deeply to be understood"))
        except Exception as error:
            result.append(Trouble(1, 1, f"cannot be parsed: {clean(str(error))[:200]}"))

    before = threading.stack_size(_STACK)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return result[0]
