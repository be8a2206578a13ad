"""Ports without one thing that `port` did: what somebody forgets who does it by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import libcst as cst

from rankup.port.check import check_python
from rankup.port.rewrite import ported
from rankup.port.rewrite.context import Context
from rankup.port.rewrite.edits import Edits
from rankup.port.rewrite.fixes.every import FIXES, STARTS
from rankup.port.source import from_bytes
from rankup.port.verify import compare, copies, journals, start
from rankup.port.verify.plan import Plan, Run
from rankup.port.verify.verdict import Result

_WORLD = 2
Group = tuple[str, list[object]]


@dataclass(frozen=True)
class Mutant:
    """A port without one fix at one place.

    Attributes:
        script: name of the case.
        what: the text that is missing, in short.
    """

    script: str
    fix: str
    what: str
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by in tables."""
        return self.script, self.fix, self.what


class _Groups(Edits):
    """Edits that know which of them belong together: all until a fix says that it is done."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.groups: list[Group] = []
        self.fix = ""
        self._open: Group | None = None

    def close(self) -> None:
        self._open = None

    def lines_after(self, end: int, indent: str, *lines: str) -> None:
        for line in lines:  # each a thing of its own: `wrap`, `total`, `barrier`
            super().lines_after(end, indent, line)
            self.close()

    def without(self, group: Group) -> str:
        kept, gone = self._edits, {id(one) for one in group[1]}
        self._edits = [one for one in kept if id(one) not in gone]
        try:
            return self.apply()
        finally:
            self._edits = kept

    def _add(self, start: int, end: int, text: str, order: tuple[int, int]) -> None:
        super()._add(start, end, text, order)
        if not self.fix or text.strip().startswith("# rankup:"):
            return  # an import, `setup`; a remark is no fix
        if self._open is None:
            self._open = (self.fix, [])
            self.groups.append(self._open)
        self._open[1].append(self._edits[-1])


def mutants_of(path: Path) -> tuple[str, list[Mutant]]:
    """The whole port of a case, and all that it is without one fix at one place."""
    name = path.name.removesuffix(".in.py")
    with _recording() as made:
        whole = ported.port(path).text
    found: list[Mutant] = []
    for edits in made:
        for group in edits.groups:
            what = " … ".join(str(getattr(one, "text", "")).strip() for one in group[1])
            found.append(Mutant(name, group[0], what, edits.without(group)))
    for first in STARTS:
        text = ported.port(path, without={first}).text
        if text != whole:
            found.append(Mutant(name, first, f"rankup.{first}()", text))
    assert all(one.text != whole for one in found)
    return whole, found


def findings(path: Path, text: str) -> Counter[tuple[str, str]]:
    """What `check` says of a script at a place, without lines, which a line less moves."""
    source = from_bytes(path, text.encode())
    return Counter((one.code, one.message) for one in check_python(source))


def differences(case: Path, ports: Mapping[str, str], folder: Path) -> dict[str, list[Result]]:
    """What `verify` finds wrong with ports of a case on 2 ranks, all forked from one process."""
    (folder / "train.py").write_bytes(case.read_bytes())
    project = copies.Project(folder, Path("train.py"), Path("port.py"), None)

    def plan(job: start.Job, state: Path) -> Plan:
        runs = []
        for name, text in {"original": "", **ports}.items():
            (folder / "port.py").write_text(text)
            place = state / "runs" / name
            copies.make(project, place)
            script = place / ("port.py" if text else "train.py")
            world = _WORLD if text else 0
            runs.append(Run(name, str(script), str(place), str(place), world))
        temporary = state / "tmp"
        temporary.mkdir()
        start.told(state).mkdir()
        return Plan(str(start.told(state)), str(temporary), (), (), job.seconds, tuple(runs))

    with start.state_folder() as state, patch.object(start, "_plan", plan):
        outcomes = start.run(start.Job(project, (), (), 60.0), state, lambda _: None)
        seen = {
            one.name: journals.read(start.told(state), one.name, len(one.ranks), one)
            for one in outcomes
        }
        return {
            name: [
                one
                for one in compare.results(seen["original"], {_WORLD: seen.get(name)}, None)
                if one.state == "differs"
            ]
            for name in ports
        }


@contextmanager
def _recording() -> Iterator[list[_Groups]]:
    made: list[_Groups] = []

    def edits(text: str) -> _Groups:
        made.append(_Groups(text))
        return made[-1]

    def done(context: Context, node: cst.CSTNode | None, text: str) -> None:
        plain(context, node, text)
        made[-1].close()

    plain = Context.done
    named = {name: _under(name, fix) for name, fix in FIXES.items()}
    with (
        patch.object(ported, "Edits", edits),
        patch.object(Context, "done", done),
        patch.dict(FIXES, named),
    ):
        yield made


def _under(name: str, fix: Callable[[Context], None]) -> Callable[[Context], None]:
    """A fix whose edits are known by its name."""

    def named(context: Context) -> None:
        assert isinstance(context.edits, _Groups)
        context.edits.fix = name
        context.edits.close()
        fix(context)
        context.edits.fix = ""

    return named
