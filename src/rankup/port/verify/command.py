"""`rankup verify`: from two files to a table and an exit code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import EXIT_FAILED, UserError
from ...base.text import say
from ...script import source
from ...script.source import File
from . import compare, start, verdict
from .protocol import ORIGINAL, Seen, read

# Calls of a port; `rankup.data` and the like serve a script for one GPU as well.
_PORTED = {"setup", "shard", "wrap", "parallelize", "init_process_group"}


@dataclass(frozen=True)
class Request:
    """A request to verify a port.

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


def verify(request: Request) -> int:
    """Run, compare, print; return the exit code: 1 where something differs.

    Raises:
        UserError: there is no such script, or nothing in it to compare.
    """
    script = _script(request.original)
    _must_be_original(script)
    original = script.path
    stand_ins = tuple(_folder(one) for one in request.stand_ins)
    made = _port(original) if request.ported is None else {}
    ported = next(iter(made)) if request.ported is None else _script(request.ported).path
    if ported.resolve() == original.resolve():
        raise UserError(f"{original} is both the original and the port: give two scripts")
    project = start.project_of(original, ported, made)
    with start.sandbox() as box:
        outcomes = start.run(
            box,
            project.root,
            start.placed(project, box),
            lambda run: say(f"running {run.title}"),
            args=request.args,
            stand_ins=stand_ins,
            seconds=request.seconds,
        )
        seen = {one.run.name: read(start.journals(box), one) for one in outcomes}
    if ORIGINAL not in seen:
        raise UserError(f"{original} did not come to an end in its time; see --time")
    _must_train(seen[ORIGINAL], original)
    results = compare.results(seen, [run for run in start.runs() if run.world])
    verdict.show(results, _notes(seen))
    states = {one.state for one in results}
    unseen = sorted({one.check for one in results if one.state == "not seen"})
    if "differs" in states:
        print("\nthe port is not the same run")
        return EXIT_FAILED
    if unseen:
        print(f"\nnothing differs; not seen in so few steps: {', '.join(unseen)}")
    elif "rank 0's" in states:
        print("\nthe same run on 1, 2 and 3 ranks, but for numbers that are rank 0's")
    else:
        print("\nproved: the same run on 1, 2 and 3 ranks")
    return 0


def _must_be_original(script: File) -> None:
    """Two ports, or the two arguments in the wrong order, are refused at once."""
    for node in _unconditional(script.tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "rankup":
            names = [one.name for one in node.names]
        elif isinstance(node, ast.Call):
            *of, name = ast.unparse(node.func).split(".")
            names = [name] if "rankup" in of or name == "init_process_group" else []
        for name in names:
            if name in _PORTED:
                raise UserError(
                    f"{script.path}:{getattr(node, 'lineno', 1)} uses {name}, so it is a port "
                    "already; give the script for one GPU first and its port second: "
                    "rankup verify train.py train_dist.py"
                )


def _unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes, but those that only a script that can do both runs on many GPUs."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.If) or "__name__" in ast.unparse(child.test):
            yield from _unconditional(child)


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


def _notes(seen: Mapping[str, Seen]) -> list[str]:
    found = []
    original = seen[ORIGINAL].ranks[0]
    for event in original.of("cut"):
        if event["of"] is None:
            found.append(f"data: the first {event['size']} items of {event['kind']}")
        elif event["of"] != event["size"]:
            found.append(
                f"data: {event['size']} of {event['of']} of {event['kind']}, spread over all; "
                "further runs have a last batch of one sample, and a full one"
            )
    if original.of("cut") and seen[ORIGINAL].run.varied:
        found.append("data: each sample's first array is scaled, by factors from 0.25 to 1")
    if any(event["shuffles"] for event in original.of("iterate")):
        found.append("shuffling: off, but for a run with random numbers of each rank's own")
    ranks = [rank for run in seen.values() for rank in run.ranks]
    found += [event["text"] for rank in ranks for event in rank.of("note")]
    if seen[ORIGINAL].run.gpu:
        found.append("torch.cuda.is_available() says yes, all the same it runs on the CPU")
    for name in ("original-one", "original-alike"):
        if name in seen and seen[name].failed:
            found.append(f"left out: {seen[name].run.title} does not come to its end")
    refused = {
        f"refused: {event.get('what') or 'network: ' + event['host']} ({event['where']})"
        for rank in ranks
        for event in rank.of("refused", "connect")
    }
    return list(dict.fromkeys([*found, *sorted(refused)]))


def _script(name: str) -> File:
    path = Path(name)
    source.refuse_notebook(path)
    if not path.is_file():
        raise UserError(f"no script {name!r} in {Path.cwd()}")
    file = source.read(path)
    if (error := file.error) is not None:
        raise UserError(f"{path}:{error.line}: {error.message}")
    return file


def _folder(name: str) -> Path:
    path = Path(name)
    if not path.is_dir():
        raise UserError(f"--stand-ins {name}: no such folder")
    return path


def _port(original: Path) -> dict[Path, str]:
    """The port that `rankup port` makes, with its modules: texts by their places."""
    from ..rewrite.ported import port  # only where no port is given

    ported = port(original)
    if ported.why:
        raise UserError(f"{original} was not ported: {ported.why}")
    return {one.target: one.text for one in ported.files}
