"""Checks 4 to 6: what is evaluated, printed, written and saved is what the original leaves.

A port promises the original's numbers of an evaluation and of the loss that is differentiated.
Other numbers of a training loop are those of rank 0's part of the batches. Those are told apart by
a further run, in which the parts of each training batch are alike: there a mean over rank 0's part
is the original's number, and a count is the original's over the number of ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from ....base.amounts import words
from ..protocol import Event, Seen
from ..verdict import Result, differs
from .samples import evaluations, unreached

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])")
# Dates, times of day, durations, addresses: no two runs print the same.
_PASSING = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?|0x[0-9a-f]+|"
    r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?\s?(?:ms|s|sec|secs|seconds|min|it/s|s/it|samples/s|img/s)\b",
    re.IGNORECASE,
)
_RELATIVE = 1e-4
_LONGEST = 120  # characters of a line that is shown
# Pictures, pages and scripts, of which those of a port are others all the same.
_UNLIKE = (
    ".bmp", ".eps", ".gif", ".html", ".jpeg", ".jpg", ".mp4", ".pdf", ".png", ".ps", ".py", ".svg",
    ".tif", ".tiff", ".webp",
)  # fmt: skip

# A number of a line: the file it is in ("" for what is printed), the line's words, its place there.
Place = tuple[str, str, int]


@dataclass(frozen=True)
class Line:
    """A line in the form in which it is compared.

    Attributes:
        bar: the last state of a progress bar.
    """

    text: str
    words: str
    numbers: tuple[str, ...]
    phase: str = ""
    bar: bool = False


@dataclass(frozen=True)
class Unlike:
    """A place where two outputs differ.

    Attributes:
        original, port: the lines; None: the other has no such line.
        places: the numbers in which they do; empty where they differ in their words.
    """

    file: str
    original: Line | None
    port: Line | None
    places: tuple[Place, ...] = ()

    @property
    def evaluates(self) -> bool:
        """True for numbers that are printed behind an evaluation."""
        line = self.original
        return bool(self.places) and line is not None and line.phase == "eval"

    def text(self) -> str:
        """Return it as a sentence."""
        verb = "prints" if not self.file else f"writes into {self.file}"
        if self.original is None:
            assert self.port is not None
            return f"the port {verb} what the original does not: {_short(self.port)}"
        if self.port is None:
            return f"the original {verb} what the port does not: {_short(self.original)}"
        return f"the original {verb} {_short(self.original)}, the port {_short(self.port)}"


@dataclass(frozen=True)
class Alike:
    """Findings of the run in which the parts of each training batch are alike.

    Attributes:
        own: numbers that may be those of rank 0's part, and are right as such.
        varying: numbers of the original that depend on its data.
    """

    own: frozenset[Place]
    varying: frozenset[Place]


def alike(base: Seen, original: Seen, port: Seen) -> Alike:
    """Return what that run shows.

    Args:
        base: the original with its data as it is.
    """
    wrong = {place for one in differences(original, port) for place in one.places}
    both = {place for place, _, _ in _numbers(original, port)}
    varying = {place for place, one, other in _numbers(base, original) if one != other}
    return Alike(frozenset(both - wrong), frozenset(varying))


def evaluation(original: Seen, port: Seen, known: Alike | None) -> Result:
    """The samples drawn without gradients, and the numbers that are printed behind them."""
    wrong, total, number = evaluations(original, port)
    if not port.run.free:
        for one in differences(original, port):
            if one.evaluates and not _is_own(one, port, known):
                wrong.append(one.text())
    if wrong:
        return differs("", *wrong)
    missed = unreached(original)
    if missed or not number:
        return Result("not seen", f"not reached: {missed[0]}" if missed else "none reached")
    if not port.run.free and not _evaluated_numbers(original, known):
        return Result("not seen", "prints no number of it")
    return Result("proved", f"{total} in {words(number, 'pass', 'passes')}")


def output(original: Seen, port: Seen, known: Alike | None) -> Result:
    """Files by their names and writers; lines by their words and numbers."""
    wrong = _writers(port)
    for rank, journal in enumerate(port.ranks[1:], 1):
        shown = next((one["text"] for one in journal.of("line") if one["text"].strip()), None)
        if shown is not None:
            wrong.append(f"rank {rank} prints too: {shown!r}")
    own = []
    if not port.run.free:
        wrong += _files(original, port)
        for one in differences(original, port):
            if _is_own(one, port, known):
                own.append(one)
            elif not one.evaluates:
                wrong.append(one.text())
    if wrong:
        return differs("", *wrong)
    files, lines = len(port.ranks[0].written()), len(_lines(port))
    if own:
        texts = tuple(dict.fromkeys(one.text() for one in own))
        return Result("rank 0's", f"{len(own)} of {lines} lines", texts)
    if not files and not lines and not original.ranks[0].written():
        return Result("not seen", "prints nothing")
    return Result("proved", f"{words(files, 'file', 'files')}, {words(lines, 'line', 'lines')}")


def saved(original: Seen, port: Seen) -> Result:
    """The port's files, as its rank 0 has compared them with the original's."""
    files = [one for event in port.ranks[0].of("loaded") for one in event["files"]]
    wrong = [f"{one['path']}: {one['why']}" for one in files if one["why"]]
    if wrong:
        return differs("", *wrong)
    loaded = {one["path"] for one in files}
    for name, lines in original.texts.items():
        if lines is None and name not in loaded and not name.lower().endswith(_UNLIKE):
            return Result("not seen", f"{name} is not compared")
    if not files:
        return Result("not seen", "saves nothing")
    models = sum(one["models"] for one in files)
    counts = words(len(files), "file", "files"), words(models, "model", "models")
    return Result("proved", ", ".join(counts))


def differences(original: Seen, port: Seen) -> list[Unlike]:
    """Return all lines that differ, printed ones and those of text files."""
    found = []
    for file, mine, its in _aligned(original, port):
        if mine is None or its is None or mine.words != its.words:
            found.append(Unlike(file, mine, its))
            continue
        places = tuple(
            (file, mine.words, place)
            for place, (one, other) in enumerate(zip(mine.numbers, its.numbers, strict=True))
            if not near(one, other) and not (port.run.alike and _is_part(one, other, port.world))
        )
        if places:
            found.append(Unlike(file, mine, its, places))
    return found


def _aligned(original: Seen, port: Seen) -> Iterator[tuple[str, Line | None, Line | None]]:
    """Yield the lines with equal words in pairs, and one pair for each place where words differ."""
    files = [("", _lines(original), _lines(port))]
    theirs = port.texts
    for name, lines in original.texts.items():
        both = lines, theirs.get(name)
        if None not in both and not name.lower().endswith(_UNLIKE):
            mine, its = ([parse(one) for one in every or () if one.strip()] for every in both)
            files.append((name, mine, its))
    for file, mine, its in files:
        matcher = SequenceMatcher(None, [o.words for o in mine], [t.words for t in its], False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal":
                yield from ((file, *pair) for pair in zip(mine[a:b], its[c:d], strict=True))
            else:
                yield file, mine[a] if a < b else None, its[c] if c < d else None


def _numbers(original: Seen, port: Seen) -> Iterator[tuple[Place, str, str]]:
    """Yield all numbers of lines that both have, with their values."""
    for file, mine, its in _aligned(original, port):
        if mine is not None and its is not None and mine.words == its.words:
            pairs = zip(mine.numbers, its.numbers, strict=True)
            for place, (one, other) in enumerate(pairs):
                yield (file, mine.words, place), one, other


def _is_own(one: Unlike, port: Seen, known: Alike | None) -> bool:
    """Return True when the port may promise these numbers, as those of rank 0's part."""
    return port.world > 1 and known is not None and bool(one.places) and {*one.places} <= known.own


def _evaluated_numbers(original: Seen, known: Alike | None) -> bool:
    """Return True when a number is printed behind an evaluation, not by a progress bar alone."""
    for line in _lines(original):
        if line.phase != "eval" or line.bar:
            continue
        for place, number in enumerate(line.numbers):
            if known is None and ("." in number or "/" in line.words):
                return True
            if known is not None and ("", line.words, place) in known.varying:
                return True
    return False


def parse(text: str, phase: str = "", *, bar: bool = False) -> Line:
    """A line with what passes left out, and its numbers apart."""
    plain = _PASSING.sub("~", text.rstrip())
    return Line(text.rstrip(), _NUMBER.sub("#", plain), tuple(_NUMBER.findall(plain)), phase, bar)


def _lines(run: Seen) -> list[Line]:
    events = run.ranks[0].of("line")
    script = next((event["script"] for event in run.ranks[0].of("start")), "")
    return [_line(event, script) for event in events if event["text"].strip()]


def _line(event: Event, script: str) -> Line:
    """Return a line without the script's folder and name, which are not compared."""
    text = event["text"]
    if script:
        text = text.replace(str(Path(script).parent), ".").replace(Path(script).name, "SCRIPT")
    return parse(text, event["phase"], bar=event.get("bar", False))


def near(one: str, other: str) -> bool:
    """Return True for the same printed number, but for the rounding of the last digit."""
    if one == other:
        return True
    a, b = float(one), float(other)
    return abs(a - b) <= max(
        _RELATIVE * max(abs(a), abs(b)), 1.01 * _unit(one), 1.01 * _unit(other)
    )


def _is_part(one: str, other: str, world: int) -> bool:
    """Return True for a count of which each rank has an equal part."""
    a, b = float(one), float(other)
    return abs(a - b * world) <= max(_RELATIVE * abs(a), 1.01 * world * _unit(other))


def _unit(text: str) -> float:
    """Return one in the last printed place; zero for a whole number, which is not rounded."""
    mantissa, _, exponent = text.lower().partition("e")
    _, point, digits = mantissa.partition(".")
    if not point and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(digits)))


def _short(line: Line) -> str:
    return repr(line.text if len(line.text) <= _LONGEST else f"{line.text[:_LONGEST]}...")


def _writers(port: Seen) -> list[str]:
    ranks: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, journal in enumerate(port.ranks):
        for event in journal.of("open", "rename"):
            ranks[event.get("to", event.get("path"))].setdefault(rank, event["where"])
    wrong = []
    for path, writers in ranks.items():
        if len(writers) > 1:
            shown = " and ".join(f"rank {rank} ({where})" for rank, where in writers.items())
            wrong.append(f"{path} is written by {shown}: the last one wins, or they tear it")
    return wrong


def _files(original: Seen, port: Seen) -> Sequence[str]:
    ours = original.ranks[0].written()
    theirs = {path for journal in port.ranks for path in journal.written()}
    missing = [f"the port does not write {name}" for name in sorted(ours - theirs)]
    more = [
        f"the port writes {name}, which the original does not" for name in sorted(theirs - ours)
    ]
    return [*missing, *more]
