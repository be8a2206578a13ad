"""Programs that the script starts, told by their name and the URLs they are given."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence

from ....base.urls import among
from .journal import Journal

# These change files that are named to them; what they do inside of folders is not seen.
_CHANGE = {"cp", "mv", "perl", "rm", "sed", "shred", "tee", "truncate", "unlink"}


class Spawned:
    """Handlers of the audit events of processes.

    Args:
        handed: called with the path of each file that a program is given and may change.
    """

    def __init__(self, journal: Journal, handed: Callable[[str], None]) -> None:
        self._journal = journal
        self._handed = handed

    def popen(self, program: object, args: object, folder: object = None, *rest: object) -> None:
        """`subprocess.Popen`."""
        if isinstance(args, str | bytes | os.PathLike):
            self.shell(args, folder)
        elif isinstance(args, Iterable):
            words = [_text(word) for word in args]
            if words[:2] == ["/bin/sh", "-c"] and len(words) > 2:
                self.shell(words[2], folder)
            else:
                self._tell(_text(program) or (words or [""])[0], words)
                self._hand([_text(program), *words], _text(folder))

    def shell(self, command: object, folder: object = None) -> None:
        """`os.system`: the command may begin with secrets, `TOKEN=... program`."""
        text = _text(command)
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        program = next((word for word in words if "=" not in word), "")
        self._tell(program, [text])
        self._hand(words, _text(folder))

    def started(self, program: object, args: object, *rest: object) -> None:
        """`os.exec*` and `os.posix_spawn`."""
        words = [_text(word) for word in args] if isinstance(args, list | tuple) else []
        self._tell(_text(program), words)
        self._hand([_text(program), *words], "")

    def _hand(self, words: Sequence[str], folder: str) -> None:
        """Tell of the files among the words of a command, if it has a program that changes such."""
        if _CHANGE.isdisjoint(map(os.path.basename, words)):
            return
        for word in words:
            if word and os.path.basename(word) not in _CHANGE:
                self._handed(os.path.join(folder, word))

    def _tell(self, program: str, words: Iterable[str]) -> None:
        urls = [url for word in words for url in among(word)]
        self._journal.tell(
            "spawn", words=[os.path.basename(program), *urls], where=self._journal.where()
        )


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else ""
