"""`rankup verify`: from two files to a table and an exit code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import EXIT_FAILED, UserError
from ...base.text import say
from . import compare, copies, journals, start, table
from .journals import Seen
from .plan import Outcome
from .verdict import Result

_NAMES = {"original": "the original", "kill": "the port on 2 ranks, one of them killed"}


@dataclass(frozen=True)
class Request:
    """What was asked.

    Attributes:
        ported: None: `port` makes it.
        args: of both scripts.
        stand_ins: folders with modules for packages that are missing here.
        seconds: limit of each run.
    """

    original: str
    ported: str | None = None
    args: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    seconds: float = 120.0


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Attributes:
        notes: what was done to make the runs comparable.
    """

    results: tuple[Result, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 where something differs."""
        return EXIT_FAILED if any(one.state == "differs" for one in self.results) else 0


def verify(request: Request) -> int:
    """Run, compare, print; the exit code.

    Raises:
        UserError: there is no such script, or nothing in it to compare.
    """
    verdict = judge(request, say)
    table.show(verdict.results, verdict.notes)
    unseen = sorted({one.check for one in verdict.results if one.state == "not seen"})
    if verdict.exit_code:
        print("\nthe port is not the same run")
    elif unseen:
        print(f"\nnothing differs; not seen in so few steps: {', '.join(unseen)}")
    else:
        print("\nproved: the same run on 1, 2 and 3 ranks")
    return verdict.exit_code


def judge(request: Request, tell: Callable[[str], None]) -> Verdict:
    """All runs, and what their comparison gives.

    Raises:
        UserError: see `verify`.
    """
    original = _script(request.original)
    stand_ins = tuple(_folder(one) for one in request.stand_ins)
    with start.state_folder() as state:
        ported = _script(request.ported) if request.ported else _port(original, state)
        if ported.resolve() == original.resolve():
            raise UserError(f"{original} is both the original and the port: give two scripts")
        project = copies.project_of(original, ported, Path.cwd())
        job = start.Job(project, request.args, stand_ins, request.seconds)
        outcomes = start.run(job, state, lambda run: tell(f"running {_called(run)}"))
        return _verdict(state, outcomes, original)


def _verdict(state: Path, outcomes: Sequence[Outcome], original: Path) -> Verdict:
    worlds = {"original": 0, "kill": 2, **{str(world): world for world in start.WORLDS}}
    seen = {
        one.name: journals.read(start.told(state), one.name, worlds[one.name], one)
        for one in outcomes
    }
    if "original" not in seen:
        raise UserError(f"{original} did not come to an end in its time; see --time")
    first = seen["original"]
    _must_train(first, original)
    ports = {world: seen.get(str(world)) for world in start.WORLDS}
    results = compare.results(first, ports, seen.get("kill"))
    return Verdict(tuple(results), tuple(_notes(list(seen.values()))))


def _must_train(original: Seen, path: Path) -> None:
    """Nothing can be compared with an original that does not train here."""
    if original.failed:
        ends = [event for event in original.ranks[0].of("end") if event.get("missing")]
        if ends:
            missing = ends[0]["missing"]
            raise UserError(
                f"{path} needs the package {missing}, which is not installed in this Python; "
                "install it, or give a folder with a stand-in for it: --stand-ins DIR"
            )
        raise UserError(
            f"{path} itself does not come to its end here, on the CPU with little data: "
            f"{compare.failure(original)}\ngive it what it needs after `--`, as in "
            f"`rankup verify {path.name} -- --epochs 2`"
        )
    journal = original.ranks[0]
    if not journal.of("step"):
        raise UserError(f"{path} made no optimizer step: there is no training to compare")
    if not journal.of("batch"):
        raise UserError(
            f"{path} trains without a torch DataLoader: nothing tells which samples are whose"
        )


def _notes(seen: list[Seen]) -> list[str]:
    found = []
    for event in seen[0].ranks[0].of("cut"):
        if event["of"] is None:
            found.append(f"data: the first {event['size']} items of {event['kind']}")
        elif event["of"] != event["size"]:
            found.append(f"data: the first {event['size']} of {event['of']} of {event['kind']}")
    if any(event["shuffles"] for event in seen[0].ranks[0].of("iterate")):
        found.append("shuffling: off")
    found += journals.notes(seen)
    if seen[0].outcome.tried.gpu:
        found.append("torch.cuda.is_available() says yes, all the same it runs on the CPU")
    refused = {
        f"refused: {event['what']} ({event['where']})"
        for run in seen
        for rank in run.ranks
        for event in rank.of("refused")
    }
    return list(dict.fromkeys([*found, *sorted(refused)]))


def _script(name: str | None) -> Path:
    path = Path(name or "")
    if path.suffix == ".ipynb":
        raise UserError(
            f"{path} is a notebook; make a script of it first: jupyter nbconvert --to script {path}"
        )
    if not path.is_file():
        raise UserError(f"no script {name!r} in {Path.cwd()}")
    try:
        ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"{path}{f':{line}' if line else ''} is no Python: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply for Python") from None
    return path


def _folder(name: str) -> Path:
    path = Path(name)
    if not path.is_dir():
        raise UserError(f"--stand-ins {name}: no such folder")
    return path


def _port(original: Path, state: Path) -> Path:
    """The port that `rankup port` makes, in a folder of its own."""
    from ..rewrite.ported import port  # only where no port is given

    ported = port(original)
    if ported.why:
        raise UserError(f"{original} was not ported: {ported.why}")
    target = state / "port" / ported.target.name
    target.parent.mkdir()
    target.write_bytes(ported.text.encode("utf-8", "surrogateescape"))
    return target


def _called(run: str) -> str:
    ranks = f"the port on {run} rank{'s' if run != '1' else ''}"
    return _NAMES.get(run, ranks)
