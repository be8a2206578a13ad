"""Programs that the script starts, told by their name and the URLs they are given."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from .journal import Journal
from .urls import among


class Spawned:
    """Handlers of the audit events of processes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def popen(self, program: object, args: object, *rest: object) -> None:
        """`subprocess.Popen`."""
        if isinstance(args, str | bytes | os.PathLike):
            self.shell(args)
        elif isinstance(args, Iterable):
            words = [_text(word) for word in args]
            if words[:2] == ["/bin/sh", "-c"] and len(words) > 2:
                self.shell(words[2])
            else:
                self._tell(_text(program) or (words or [""])[0], words)

    def shell(self, command: object) -> None:
        """`os.system`: the command may begin with secrets, `TOKEN=... program`."""
        text = _text(command)
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        program = next((word for word in words if "=" not in word), "")
        self._tell(program, [text])

    def started(self, program: object, args: object, *rest: object) -> None:
        """`os.exec*` and `os.posix_spawn`."""
        words = [_text(word) for word in args] if isinstance(args, list | tuple) else []
        self._tell(_text(program), words)

    def _tell(self, program: str, words: Iterable[str]) -> None:
        urls = [url for word in words for url in among(word)]
        self._journal.tell(
            "spawn", words=[os.path.basename(program), *urls], where=self._journal.where()
        )


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else ""
