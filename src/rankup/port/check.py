"""`rankup check`: what stands in the way of training on many ranks, and what ports got wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..base import gone
from ..base.errors import UserError, nearest
from ..base.findings import Finding, silenced
from ..base.text import clean, clean_lines
from ..script.source import File, read, refuse_notebook
from ..script.understand import understand
from .rules import RULES, Hit
from .rules.facts import single
from .rules.rule import REFUSED, refuses

SYNTAX = "RK100"
Format = Literal["text", "json", "github"]
_NO_GROUP = "RK101"
_SAID = 3  # files of which the last line says what was looked for
_LARGEST = 200  # files of a folder: more is no folder of scripts


def check(
    files: Iterable[Path],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    shown: list[str] | None = None,
    looked: list[str] | None = None,
) -> tuple[Finding, ...]:
    """Findings of Python scripts, batch files and folders of them, in the order of their places.

    A script is looked at together with the modules of its own folder that it imports, and findings
    in those are reported at their place. Of a script that is not distributed yet what `port` writes
    is one finding, unless codes are selected.

    Args:
        select: codes or beginnings of codes (`RK1`, `RK121`) to report; all without any.
        ignore: those not to report, of the selected ones.
        shown: takes the lines about what each batch file would start.
        looked: takes a line about what was looked for in each file.

    Raises:
        UserError: no such file, one that is no script, or an unknown code.
    """
    for wanted in (*select, *ignore):
        _known(wanted)
    found: dict[tuple[str, str, str], Finding] = {}
    known: dict[str, File] = {}  # each file is read once, however many scripts import it
    for path in _files(files):
        looking = _Looking(known, select, ignore, shown, [] if looked is None else looked)
        for one in looking.check(path):
            found.setdefault((one.code, one.place, one.message), one)
    return tuple(sorted(found.values(), key=lambda one: (*split(one.place), one.code)))


def split(place: str) -> tuple[str, int, int]:
    """File, line and column of a finding's place."""
    match = re.fullmatch(r"(?P<file>.*?)(?::(?P<line>\d+))?(?::(?P<column>\d+))?", place, re.DOTALL)
    assert match is not None
    return match["file"], int(match["line"] or 1), int(match["column"] or 1)


def check_python(file: File, known: dict[str, File] | None = None) -> list[Finding]:
    """Findings of one script and the modules of its repository; nothing is written or run.

    Args:
        known: files that were read before, by their real path.
    """
    return [found.finding for found in _Looking(known or {}).python(file)]


@dataclass(frozen=True)
class _Found:
    """A finding.

    Attributes:
        written: the script is not distributed yet, and `port` mends this.
        refused: it is why `port` writes nothing.
    """

    finding: Finding
    written: bool = False
    refused: bool = False


@dataclass
class _Looking:
    """How files are looked at; the fields are the arguments of `check`."""

    known: dict[str, File] = field(default_factory=dict)
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    shown: list[str] | None = None
    looked: list[str] = field(default_factory=list)

    def check(self, path: Path) -> list[Finding]:
        """The findings of a file that are selected."""
        try:
            if is_batch_file(path):
                return [one for one in self._batch(path) if self._selected(one)]
            real = os.path.realpath(path)
            file = self.known.get(real)
            if file is None or file.path != path:  # findings name a script as it was given
                file = self.known[real] = read(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
        found = [one for one in self.python(file) if self._selected(one.finding)]
        return [one.finding for one in found] if self.select else _folded(found)

    def _selected(self, one: Finding) -> bool:
        return _selected(one.code, self.select, self.ignore)

    def _batch(self, path: Path) -> Iterable[Finding]:
        from . import batch

        lines, found = batch.examine(path)
        if self.shown is not None:
            self.shown += [f"{clean(str(path))}: {line}" for line in lines]
        self.looked.append(f"{len(batch.RULES)} rules about batch files on {clean(path.name)}")
        return found

    def python(self, file: File) -> list[_Found]:
        """All findings of a script and the modules of its repository."""
        name = clean(file.path.name)
        if file.error is not None and not file.concerns_training:
            self.looked.append(f"{name} is not about training")
            return []
        if file.error is not None:
            error = file.error
            place = f"{clean(str(file.path))}:{error.line}:{error.column}"
            return [_Found(Finding(SYNTAX, "error", place, error.message, error.hint))]
        try:
            script = understand(file, self.known)
            if not script.trains:
                self.looked.append(f"no training is seen in {name}: it comes to no .backward()")
                return []
            modules = len(script.files) - 1
            beside = f" and {modules} module{'s' * (modules > 1)} of its repository"
            self.looked.append(f"{len(RULES)} rules on {name}{beside if modules else ''}")
            alone = single(script) and not script.frameworks
            return [
                _Found(
                    rule.finding(each.place(hit.at), hit),
                    alone and (rule.by_port or (hit.fix is not None and not refuses(hit))),
                    alone and (refuses(hit) or rule.code in REFUSED),
                )
                for each in script.files
                for rule in RULES
                for hit in rule.hits(each, script)
                if not _silenced(each, rule.code, hit)
            ]
        except RecursionError:
            place = f"{clean(str(file.path))}:1:1"
            return [_Found(Finding(SYNTAX, "error", place, "nested too deeply to be understood"))]


def _folded(found: Sequence[_Found]) -> list[Finding]:
    """The findings of a script, with one line for all that `port` writes."""
    first = next((one.finding for one in found if one.finding.code == _NO_GROUP), None)
    written = [one.finding for one in found if one.written]
    if first is None or first not in written:
        return [one.finding for one in found]
    others = [one.finding for one in found if not one.written]
    refused = sorted({one.finding.code for one in found if one.refused})
    if refused:
        message = f"not distributed yet, and `rankup port` refuses it: {' and '.join(refused)}"
        return [replace(first, message=message, todo="mend that first"), *others]
    places = [split(one.place) for one in written]
    main = split(first.place)[0]
    lines = [
        f"{line if name == main else f'{Path(name).name}:{line}'} {one.code}"
        for one, (name, line, _) in sorted(
            zip(written, places, strict=True), key=lambda pair: (pair[1][0] != main, *pair[1])
        )
    ]
    number = "this place" if len(written) == 1 else f"these {len(written)} places"
    message = f"not distributed yet: `rankup port` takes care of {number}"
    todo = f"by line: {', '.join(lines)}; `rankup check --select RK` says why"
    return [replace(first, message=message, todo=todo), *others]


def is_batch_file(path: Path) -> bool:
    """Return True for a file for `sbatch`; others are taken for Python."""
    from . import batch

    return batch.is_batch(path)


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _in_folder(path)
            continue
        refuse_notebook(path)
        if path.is_file():
            found.append(path)
        elif path.exists():
            raise UserError(f"{path} is no regular file; name a Python script or a batch file")
        else:
            raise UserError(f"there is no file {path}; name a Python script or a batch file")
    return found


def _in_folder(folder: Path) -> list[Path]:
    """The Python and batch files below a folder; links and hidden folders are not followed."""
    found: list[Path] = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one[0] not in "._" and one != "node_modules")
        endings = (".py", ".sbatch", ".slurm")
        found += [Path(at, name) for name in sorted(names) if name.endswith(endings)]
        if len(found) > _LARGEST:
            raise UserError(
                f"{folder} holds more than {_LARGEST} scripts; name those that you start"
            )
    return [one for one in found if one.is_file()]


def _known(wanted: str) -> None:
    from . import batch
    from .rules import RULES

    codes = {SYNTAX, *(rule.code for rule in RULES), *(rule.code for rule in batch.RULES)}
    gone.refuse(wanted)
    prefixed = re.fullmatch(r"RK[123]?\d{0,2}", wanted)
    if not prefixed or (wanted.startswith("RK1") and not any(c.startswith(wanted) for c in codes)):
        raise UserError(f"{wanted!r} is no code of a rule; {nearest(wanted, codes)}")


def _selected(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    """The longest beginning that fits decides, as in ruff."""
    chosen = max((len(one) for one in select if code.startswith(one)), default=-1)
    left_out = max((len(one) for one in ignore if code.startswith(one)), default=-1)
    return ((chosen >= 0 or not select) and left_out < max(chosen, 0)) or (
        not select and left_out < 0
    )


def _silenced(file: File, code: str, hit: Hit) -> bool:
    line = file.line(hit.at)[0]
    return line <= len(file.lines) and silenced(code, file.lines[line - 1])


def formatted(findings: Sequence[Finding], style: Format, looked: Sequence[str] = ()) -> str:
    """The findings as text, with a last line that counts them.

    Args:
        looked: what was looked for, which the last line says where nothing was found.
    """
    if style == "json":
        return json.dumps([_entry(one) for one in findings], indent=2) + "\n"
    if style == "github":
        return "".join(_annotation(one) + "\n" for one in findings)
    lines = []
    for one in findings:
        lines.append(clean_lines(f"{one.place}: {one.code} {one.message}"))
        if one.todo:
            lines.append(clean_lines(f"    -> {one.todo}"))
    lines.append(_summary(findings, looked))
    return "\n".join(lines) + "\n"


def hints(findings: Iterable[Finding], fits: Callable[[Path], bool]) -> Iterator[str]:
    """A line about each batch file that has an error.

    Args:
        fits: whether `rankup run --like` takes such a file.
    """
    wrong = dict.fromkeys(split(one.place)[0] for one in findings if one.level == "error")
    for name in wrong:
        if is_batch_file(Path(name)) and fits(Path(name)):
            yield f"`rankup run --like {shlex.quote(name)}` writes such a script by itself"


def _summary(findings: Sequence[Finding], looked: Sequence[str]) -> str:
    if not findings:
        more = f"; and {len(looked) - _SAID} more files" if len(looked) > _SAID else ""
        return ": ".join(["nothing found", *(["; ".join(looked[:_SAID]) + more] if looked else [])])
    errors = sum(one.level == "error" for one in findings)
    warnings = len(findings) - errors
    words = [
        f"{number} {word}{'s' if number != 1 else ''}"
        for number, word in ((errors, "error"), (warnings, "warning"))
        if number
    ]
    return f"found {' and '.join(words)}"


def _entry(one: Finding) -> dict[str, object]:
    file, line, column = split(one.place)
    return {
        "code": one.code,
        "level": one.level,
        "file": file,
        "line": line,
        "column": column,
        "message": one.message,
        "todo": one.todo,
    }


def _annotation(one: Finding) -> str:
    file, line, column = split(one.place)
    where = f"file={_property(clean(file))},line={line},col={column},title={one.code}"
    text = one.message + (f"; {one.todo}" if one.todo else "")
    return f"::{one.level} {where}::{_data(clean_lines(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
