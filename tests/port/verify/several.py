"""Several ports of one script verified in one start, which imports torch once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from unittest.mock import patch

from rankup.port.verify import compare, copies, journals, start
from rankup.port.verify.plan import Plan, Run
from rankup.port.verify.verdict import Result

WORLD = 2


def results(
    folder: Path,
    script: str,
    ports: Mapping[str, str],
    killed: Collection[str] = (),
    seconds: float = 120.0,
) -> dict[str, list[Result]]:
    """What `verify` says of ports of a script on 2 ranks, by their names.

    Args:
        folder: of a project without those files.
        killed: ports of which a rank is killed in a further run.
        seconds: limit of each run.
    """
    (folder / "train.py").write_text(script, encoding="utf-8", newline="")
    project = copies.Project(folder, Path("train.py"), Path("port.py"), None)
    worlds = {"original": 0, **dict.fromkeys([*ports, *(f"{one}-kill" for one in killed)], WORLD)}

    def plan(job: start.Job, state: Path) -> Plan:
        runs = []
        for name, world in worlds.items():
            text = ports[name.removesuffix("-kill")] if world else ""
            (folder / "port.py").write_text(text, encoding="utf-8", newline="")
            place = state / "runs" / name
            copies.make(project, place)
            file = place / ("port.py" if world else "train.py")
            kill_at = start.KILL_AT if name.endswith("-kill") else 0
            runs.append(Run(name, str(file), str(place), str(place), world, kill_at))
        temporary = state / "tmp"
        temporary.mkdir()
        start.told(state).mkdir()
        return Plan(str(start.told(state)), str(temporary), (), (), job.seconds, tuple(runs))

    with start.state_folder() as state, patch.object(start, "_plan", plan):
        outcomes = start.run(start.Job(project, (), (), seconds), state, lambda _: None)
        seen = {
            one.name: journals.read(start.told(state), one.name, worlds[one.name], one)
            for one in outcomes
        }
        return {
            name: compare.results(
                seen["original"], {WORLD: seen.get(name)}, seen.get(f"{name}-kill")
            )
            for name in ports
        }


def differing(found: list[Result]) -> set[str]:
    """The checks that failed."""
    return {one.check for one in found if one.state == "differs"}
