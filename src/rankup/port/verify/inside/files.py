"""What a rank prints, draws and writes; at the end its files are compared with the original's.

Writing anywhere but in the rank's copy of the project and other programs are refused.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ....sandbox.inside import files
from ....sandbox.inside.hooks import replaces
from ....sandbox.inside.journal import Journal
from ..lines import without_clock
from ..protocol import Journal as Events
from .draws import Progress
from .saved import NotRead, Text, compare, read

_MOST = 2000  # printed lines
_LONGEST = 4000  # characters of a line
_CALLS = 8  # of the user's code, by which a line was printed
_DRAWN = 100_000  # numbers of a figure


def calls(folder: str) -> list[tuple[str, int]]:
    """The present calls of the user's code, file and line, the innermost first."""
    found: list[tuple[str, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _CALLS:
        name = frame.f_code.co_filename
        if name.startswith(folder + "/"):
            found.append((name[len(folder) + 1 :], frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


class Writing(files.Files):
    """The handlers of one rank.

    Args:
        folder: the copy, without links.
        temporary, state: folders in which anything goes and nothing is recorded.
    """

    new_elsewhere = False
    why = "verify lets a script write only below its own folder"

    def __init__(self, folder: str, temporary: str, state: str, journal: Journal) -> None:
        super().__init__(journal, folder, (temporary, state), (), temporary)
        self._folder = folder

    def note(self, event: str, **fields: Any) -> None:
        """Record paths as they are in the copy."""
        for name in {"path", "from", "to"} & fields.keys():
            fields[name] = os.path.relpath(fields[name], self._folder)
        super().note(event, **fields, at=calls(self._folder))

    def start(self, program: str, words: Iterable[str]) -> None:
        """Refuse to start a program.

        Raises:
            FileNotFoundError: always.
        """
        name = os.path.basename(program)
        self._journal.tell("refused", what=f"starting {name}", where=self._journal.where())
        raise FileNotFoundError(errno.ENOENT, "rankup verify starts no other program", name)


class Lines(io.RawIOBase):
    """Records what is printed; the rest of an endless output is dropped."""

    def __init__(self, progress: Progress, folder: str) -> None:
        self._progress, self._journal, self._folder = progress, progress.journal, folder
        self._rest = b""
        self._count = 0

    def install(self) -> None:
        """Be `sys.stdout`."""
        stream = io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="replace", write_through=True
        )
        stream.reconfigure(line_buffering=True)
        sys.stdout = sys.__stdout__ = stream  # type: ignore[misc]

        # A log goes to stderr, where a progress bar and warnings are as well.
        @replaces(logging.StreamHandler, "__init__")
        def init(original: Any, handler: Any, given: Any = None) -> None:
            original(handler, sys.stdout if given in (None, sys.stderr) else given)

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of stdout: for those that ask how wide it is."""
        return 1

    def write(self, data: Any) -> int:
        """Record the lines that are whole."""
        given = bytes(data)
        *lines, rest = (self._rest + given).split(b"\n")
        self._rest = rest[-_LONGEST:]
        for line in lines:
            self._record(line)
        return len(given)

    def finish(self) -> None:
        """Record what has no line end."""
        if self._rest:
            self._record(self._rest)
            self._rest = b""

    def _record(self, line: bytes) -> None:
        self._count += 1
        if self._count == _MOST:
            self._progress.leave(f"printed lines behind the first {_MOST}")
        if self._count >= _MOST:
            return
        # Of a bar drawn over and over the last state counts.
        text = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line
        shown = text.decode("utf-8", "replace")
        if len(shown) > _LONGEST:
            self._progress.leave(f"of a printed line what is behind {_LONGEST} characters")
        fields = {"drew": self._progress.drew_last, "bar": text is not line}
        self._journal.tell("line", text=shown[:_LONGEST], at=calls(self._folder), **fields)


class Figures:
    """Records the numbers and texts of figures that matplotlib saves: pixels hang on a tick label.

    Args:
        folder: the copy, without links.
    """

    def __init__(self, folder: str, journal: Journal) -> None:
        self._folder, self._journal = folder, journal

    def watch(self, module: Any) -> None:
        """`matplotlib.figure`."""

        @replaces(module.Figure, "savefig")
        def save(original: Any, figure: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(figure, target, *args, **kwargs)
            with suppress(Exception):  # of a figure that is not understood the file is compared
                self._record(figure, target, kwargs.get("format"))
            return result

    def _record(self, figure: Any, target: Any, kind: str | None) -> None:
        import matplotlib as mpl

        path = os.fspath(target)
        if not os.path.splitext(path)[1]:
            path += "." + (kind or mpl.rcParams["savefig.format"])
        parts = list(_parts(figure))
        if sum(len(values) for _, shape, values in parts if shape is not None) > _DRAWN:
            return
        name = os.path.relpath(os.path.realpath(path), self._folder)
        self._journal.tell("figure", path=name, parts=parts)


def _parts(figure: Any) -> Iterator[tuple[str, list[int] | None, Any]]:
    """Yield the name, shape and values of each part; of a text no shape."""
    import numpy as np

    def array(name: str, values: Any) -> tuple[str, list[int], list[float]]:
        given: Any = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan)
        return name, list(given.shape), given.ravel().tolist()

    for number, axes in enumerate(figure.axes):
        at = f"axes {number}: "
        texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for place, text in enumerate(texts):
            yield f"{at}text {place}", None, text.get_text()
        for place, line in enumerate(axes.lines):
            yield array(f"{at}line {place}", line.get_xydata())
        for place, image in enumerate(axes.images):
            yield array(f"{at}image {place}", image.get_array())
        for place, patch in enumerate(axes.patches):
            path = patch.get_path().transformed(patch.get_patch_transform())
            yield array(f"{at}patch {place}", path.vertices)
        for place, group in enumerate(axes.collections):
            yield array(f"{at}points {place}", group.get_offsets())
            if group.get_array() is not None:
                yield array(f"{at}colours {place}", group.get_array())


def _figures(events: Events) -> dict[str, Mapping[str, Any]]:
    """The parts of figures, by their files."""
    import numpy as np

    return {
        event["path"]: {
            name: values if shape is None else np.array(values, dtype=float).reshape(shape)
            for name, shape, values in event["parts"]
        }
        for event in events.of("figure")
    }


class Contents:
    """The contents of a rank's files, each against the original's of that name.

    Args:
        journal: to record them in.
        folder: the rank's copy.
        world: of a run whose ranks have equal parts, else 1.
    """

    def __init__(self, journal: Journal, folder: str, world: int) -> None:
        self._journal, self._folder, self._world = journal, folder, world

    def record(self, own: Events) -> None:
        """Record the lines of text files."""
        for name in sorted(own.written()):
            with suppress(NotRead, OSError):
                text = read(os.path.join(self._folder, name))
                if isinstance(text, Text):
                    self._lines(name, text)

    def compare(self, own: Events, original: Events, folder: str) -> None:
        """Compare all files.

        Args:
            own, original: what both have recorded.
            folder: the original's copy.
        """
        drawn = _figures(own), _figures(original)
        for name, of in sorted(self._counterparts(own, original, folder).items()):
            if name != of:
                self._journal.tell("named", path=name, of=of)
            try:
                if name in drawn[0] and of in drawn[1]:
                    self._tell(of, compare(drawn[1][of], drawn[0][name], self._world))
                    continue
                mine = read(os.path.join(folder, of))
                its = read(os.path.join(self._folder, name))
            except NotRead as error:
                self._journal.tell("compared", path=of, unseen=[str(error)])
            except OSError as error:
                self._journal.tell("compared", path=of, unseen=[f"{error.strerror}"])
            else:
                if isinstance(mine, Text) and isinstance(its, Text):
                    self._lines(of, its)
                else:
                    self._tell(of, self._compared(mine, its, folder))

    def _compared(self, mine: Any, its: Any, folder: str) -> Any:
        return compare(mine, its, self._world, (folder, self._folder))

    def _counterparts(self, own: Events, original: Events, folder: str) -> dict[str, str]:
        """The original's file for each of the rank's; one named by the clock goes by contents."""
        names, others = own.written(), original.written()
        found = {name: name for name in names & others}
        left = {
            other
            for other in others - names
            if not os.path.lexists(os.path.join(self._folder, other))
        }
        for name in sorted(names - others):
            alike = [one for one in sorted(left) if without_clock(one) == without_clock(name)]
            same = [one for one in alike if self._same(name, one, folder)]
            if alike:
                found[name] = (same or alike)[0]
                left.remove(found[name])
        return found

    def _same(self, name: str, other: str, folder: str) -> bool:
        try:
            mine, its = (
                read(os.path.join(*place)) for place in ((folder, other), (self._folder, name))
            )
            return not self._compared(mine, its, folder).wrong
        except (NotRead, OSError):
            return False

    def _lines(self, name: str, text: Text) -> None:
        lines = [line.replace(self._folder, ".") for line in text.lines]
        self._journal.tell("content", path=name, lines=lines)

    def _tell(self, name: str, found: Any) -> None:
        counts = {"values": found.values, "models": found.models}
        more = {"wrong": found.wrong, "unseen": found.unseen}
        self._journal.tell("compared", path=name, **counts, **more)
