"""Which files and folders this run has made itself: those need no protection from it."""

from __future__ import annotations

import json
import os


class Made:
    """Paths made in this run, by this process or, as the journal tells, by another of its tree."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._offset = 0
        self._paths: dict[str, bool] = {}

    def add(self, path: str) -> None:
        """`path` was made in this run; of a folder: with all that will lie in it."""
        self._paths[path] = True

    def moved(self, path: str, made: bool) -> None:
        """`path` was put there by a rename: of something made in this run, or of something old."""
        self._paths[path] = made

    def known(self, path: str) -> bool:
        """Whether what lies at `path` was made in this run."""
        return self._has(path) or (self._catch_up() and self._has(path))

    def _has(self, path: str) -> bool:
        while True:
            made = self._paths.get(path)
            if made is not None:
                return made
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above

    def _catch_up(self) -> bool:
        """Read what the other processes wrote since the last call; whether there was any."""
        try:
            with open(self._journal, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = False
        for line in whole.splitlines():
            if b'"event": "open"' in line:
                event = json.loads(line)
                if not event["existed"] or event["how"] == "truncate":
                    self._paths.setdefault(event["path"], True)
                    found = True
            elif b'"event": "mkdir"' in line or b'"event": "link"' in line:
                self._paths.setdefault(json.loads(line)["path"], True)
                found = True
            elif b'"event": "rename"' in line:
                event = json.loads(line)
                self._paths.setdefault(event["to"], event["made"])
                found = True
        return found
