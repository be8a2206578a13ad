"""Checks 4 to 6: what is evaluated, printed, written and saved is what the original leaves.

A port promises the original's numbers, but for those of which `port` says that they are of rank 0's
part of the batches. These are told from wrong ones by a further run, in which the parts of each
training batch are alike: there a mean over rank 0's part is the original's number, and a count is
the original's over the number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from ....base.amounts import words
from ..lines import Line, is_part, near, parse
from ..protocol import Event, Seen, passes
from ..verdict import Result, differs
from .said import NOTHING, Said
from .samples import evaluations, unreached

_SHOWN = 3  # values of a file that are named
# A number of a line: the file it is in ("" for what is printed), the line's words, its place there.
Place = tuple[str, str, int]


@dataclass(frozen=True)
class Unlike:
    """A place where two outputs differ.

    Attributes:
        original, port: the lines; None: the other has no such line.
        places: the numbers in which they do; empty where they differ in their words.
        at: the calls that print the original's line, or open its file.
    """

    file: str
    original: Line | None
    port: Line | None
    places: tuple[Place, ...] = ()
    at: tuple[tuple[str, int], ...] = ()

    @property
    def evaluates(self) -> bool:
        """True for numbers that are printed behind an evaluation."""
        return bool(self.places) and self.original is not None and self.original.evaluates

    def text(self) -> str:
        """Return it as a sentence."""
        verb = "prints" if not self.file else f"writes into {self.file}"
        if self.original is None:
            assert self.port is not None
            return f"the port {verb} what the original does not: {self.port.short()}"
        if self.port is None:
            return f"the original {verb} what the port does not: {self.original.short()}"
        return f"the original {verb} {self.original.short()}, the port {self.port.short()}"


@dataclass(frozen=True)
class Known:
    """What tells numbers of rank 0's part from wrong ones.

    Attributes:
        said: where port says that there are some.
        own: numbers that may be, as the run with equal parts shows; None: there was no such run.
        varying: numbers of the original that depend on its data; None as well.
        apart: values of saved files, by file and place, that differ in that run too.
    """

    said: Said = NOTHING
    own: frozenset[Place] | None = None
    varying: frozenset[Place] | None = None
    apart: frozenset[tuple[str, str]] | None = None

    def allows(self, one: Unlike, port: Seen) -> bool:
        """True for numbers of rank 0's part, of which port says so."""
        if port.world < 2 or not one.places:
            return False
        if self.own is not None and not {*one.places} <= self.own:
            return False
        return self.said.covers(one.at) or (bool(one.file) and self.said.written)


def alike(said: Said, base: Seen, original: Seen, port: Seen) -> Known:
    """Return what the run with equal parts shows.

    Args:
        base: the original with its data as it is.
    """
    wrong = {place for one in differences(original, port) for place in one.places}
    both = {place for place, _, _ in _numbers(original, port)}
    varying = {place for place, one, other in _numbers(base, original) if one != other}
    apart = frozenset(
        (event["path"], place)
        for rank in port.ranks
        for event in rank.of("compared")
        for place, _, _ in event.get("wrong", ())
    )
    return Known(said, frozenset(both - wrong), frozenset(varying), apart)


def evaluation(original: Seen, port: Seen, known: Known) -> Result:
    """The samples drawn without gradients, and the numbers that are printed behind them."""
    wrong, total, number = evaluations(original, port)
    if not port.run.free:
        for one in differences(original, port):
            if one.evaluates and not known.allows(one, port):
                wrong.append(one.text())
    if wrong:
        return differs("", *wrong)
    missed = unreached(original)
    if missed or not number:
        return Result("not seen", f"not reached: {missed[0]}" if missed else "none reached")
    if not port.run.free and not _evaluated_numbers(original, known):
        return Result("not seen", "prints no number of it")
    return Result("same", f"{total} in {words(number, 'pass', 'passes')}")


def output(original: Seen, port: Seen, known: Known) -> Result:
    """Files by their names and writers; printed lines and those of text files."""
    wrong = _writers(port)
    for rank, journal in enumerate(port.ranks[1:], 1):
        shown = next((one["text"] for one in journal.of("line") if one["text"].strip()), None)
        if shown is not None:
            wrong.append(f"rank {rank} prints too: {shown!r}")
    own = []
    if not port.run.free:
        wrong += _files(original, port)
        for one in differences(original, port):
            if known.allows(one, port):
                own.append(one)
            elif not one.evaluates:
                wrong.append(one.text())
    if wrong:
        return differs("", *wrong)
    files, lines = len(port.ranks[0].written()), len(printed(port))
    if own:
        texts = tuple(dict.fromkeys(one.text() for one in own))
        return Result("rank 0's", f"{len(own)} of {lines} lines", texts)
    if not files and not lines and not original.ranks[0].written():
        return Result("-", "prints nothing")
    return Result("same", f"{words(files, 'file', 'files')}, {words(lines, 'line', 'lines')}")


def saved(original: Seen, port: Seen, known: Known) -> Result:
    """What the ranks have compared; what none of them could is not seen."""
    events = [event for rank in port.ranks for event in rank.of("compared")]
    opened = openings(original)
    wrong: list[str] = []
    own: list[str] = []
    unseen: list[str] = []
    values = models = 0
    for event in events:
        path = event["path"]
        unseen += [f"{path}: {why}" for why in event["unseen"]]
        values += event.get("values", 0)
        models += event.get("models", 0)
        bad: list[str] = []
        for place, why, array in event.get("wrong", ()):
            right = array or known.apart is None or (path, place) not in known.apart
            said = known.said.covers(opened.get(path, ())) or known.said.written
            text = f"{path}: {place} {why}" if place else f"{path} {why}"
            (own if port.world > 1 and right and said else bad).append(text)
        wrong += bad[:_SHOWN]
        if len(bad) > _SHOWN:
            wrong.append(f"{path}: {len(bad) - _SHOWN} more of its values differ")
    more = tuple(dict.fromkeys(unseen))
    if wrong:
        return Result("differs", "", tuple(wrong), unseen=more)
    if own:
        return Result("rank 0's", words(len(own), "value", "values"), tuple(own), unseen=more)
    if not values:
        return Result("not seen" if more else "-", "" if more else "saves nothing", unseen=more)
    files = words(sum(bool(event.get("values")) for event in events), "file", "files")
    shown = words(models, "model", "models") if models else words(values, "value", "values")
    return Result("same", f"{files}, {shown}", unseen=more)


def differences(original: Seen, port: Seen) -> list[Unlike]:
    """Return all lines that differ, printed ones and those of text files."""
    found = []
    opened = openings(original)
    for file, mine, its in _aligned(original, port):
        at = tuple(opened.get(file, ())) if file else mine.at if mine else ()
        if mine is None or its is None or mine.words != its.words:
            found.append(Unlike(file, mine, its, (), at))
            continue
        places = tuple(
            (file, mine.words, place)
            for place, (one, other) in enumerate(zip(mine.numbers, its.numbers, strict=True))
            if not near(one, other) and not (port.run.alike and is_part(one, other, port.world))
        )
        if places:
            found.append(Unlike(file, mine, its, places, at))
    return found


def openings(run: Seen) -> dict[str, list[tuple[str, int]]]:
    """The calls by which each file was opened for writing, or got its name."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in run.ranks[0].of("open", "rename"):
        path = event.get("to", event.get("path"))
        found[path] += found.get(event.get("from", ""), [])
        found[path] += [(str(name), line) for name, line in event.get("at", ())]
    return found


def _aligned(original: Seen, port: Seen) -> Iterator[tuple[str, Line | None, Line | None]]:
    """Yield the lines with equal words in pairs, and one pair for each place where words differ."""
    files = [("", printed(original), printed(port))]
    theirs = port.texts
    for name, lines in original.texts.items():
        if name in theirs:
            both = lines, theirs[name]
            mine, its = ([parse(one) for one in every if one.strip()] for every in both)
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


def _evaluated_numbers(original: Seen, known: Known) -> bool:
    """Return True when a number is printed behind an evaluation, not by a progress bar alone."""
    for line in printed(original):
        if not line.evaluates or line.bar:
            continue
        for place, number in enumerate(line.numbers):
            if known.varying is None and ("." in number or "/" in line.words):
                return True
            if known.varying is not None and ("", line.words, place) in known.varying:
                return True
    return False


def printed(run: Seen) -> list[Line]:
    """The lines that rank 0 prints."""
    journal = run.ranks[0]
    script = next((event["script"] for event in journal.of("start")), "")
    trained = {one.key for one in passes(journal) if one.trained}
    return [_line(event, script, trained) for event in journal.of("line") if event["text"].strip()]


def _line(event: Event, script: str, trained: set[tuple[int, int]]) -> Line:
    """Return a line without the script's folder and name, which are not compared."""
    text, drew = event["text"], event["drew"]
    if script:
        text = text.replace(str(Path(script).parent), ".").replace(Path(script).name, "SCRIPT")
    evaluates = drew is not None and tuple(drew) not in trained
    at = tuple((str(name), int(line)) for name, line in event.get("at", ()))
    return parse(text, evaluates=evaluates, bar=event.get("bar", False), at=at)


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
    theirs = set()
    for journal in port.ranks:
        by_clock = {event["path"]: event["of"] for event in journal.of("named")}
        theirs |= {by_clock.get(path, path) for path in journal.written()}
    missing = [f"the port does not write {name}" for name in sorted(ours - theirs)]
    more = [
        f"the port writes {name}, which the original does not" for name in sorted(theirs - ours)
    ]
    return [*missing, *more]
