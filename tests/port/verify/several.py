"""Several ports of one script verified in one start, which imports torch once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rankup.port.verify import compare, protocol, start
from rankup.port.verify.compare.said import NOTHING, Said
from rankup.port.verify.protocol import ORIGINAL, Run
from rankup.port.verify.verdict import Result
from rankup.sandbox.copies import Sandbox

KINDS = ("2", "free", "alike")


def results(
    folder: Path,
    script: str,
    ports: Mapping[str, str],
    seconds: float = 120.0,
    kinds: Mapping[str, Collection[str]] | None = None,
    said: Said = NOTHING,
) -> dict[str, list[Result]]:
    """What `verify` says of ports of a script, by their names.

    Args:
        folder: of a project without those files.
        seconds: limit of each run.
        kinds: the runs of a port, as `start.runs` names them; by default that on 2 ranks.
        said: where `port` says that a number is of rank 0's part.
    """
    each = {name: [*(kinds or {}).get(name, ("2",))] for name in ports}
    (folder / "train.py").write_text(script, encoding="utf-8", newline="")

    def placed(box: Sandbox) -> Iterator[Run]:
        for run, text in _runs(ports, each):
            place, names = box.copy / run.name, (Path("train.py"), Path("port.py"))
            start.copy_project(start.Project(folder, *names, {names[1]: text}), place)
            file = place / ("port.py" if run.world else "train.py")
            yield replace(run, script=str(file), folder=str(place))

    with start.sandbox() as box:
        made = start.run(box, folder, placed(box), lambda _: None, seconds=seconds)
        seen = {one.run.name: protocol.read(start.journals(box), one) for one in made.outcomes}
        assert not seen[ORIGINAL].failed, compare.failure(seen[ORIGINAL])
        originals = {name: run for name, run in seen.items() if not run.world}
        found = {}
        for name in ports:
            own = {kind: f"{name}-{kind}" for kind in each[name]}
            runs = {kind: seen[run] for kind, run in own.items() if run in seen}
            planned = [run for run in start.runs() if run.name in own]
            found[name] = compare.results({**originals, **runs}, planned, said)
        return found


def _runs(
    ports: Mapping[str, str], kinds: Mapping[str, Collection[str]]
) -> Iterator[tuple[Run, str]]:
    """The runs of each port in the order of the kinds, with its text."""
    used = {kind for own in kinds.values() for kind in own}
    needed = {run.against for run in start.runs() if run.name in used}
    for run in start.runs():
        if run.name in (ORIGINAL, *needed):
            yield run, ""
        for name, text in ports.items() if run.world else ():
            if run.name in kinds[name]:
                yield replace(run, name=f"{name}-{run.name}"), text


def differing(found: list[Result]) -> set[str]:
    """The checks that failed."""
    return {one.check for one in found if one.state == "differs"}
