"""`rankup verify`: from two files to a table, a verdict and an exit code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError
from ...base.text import say
from ...sandbox.watch import Limits, default_memory
from ...script import source
from ...script.source import File
from . import compare, start
from .compare.said import Said, SaidFile
from .protocol import ORIGINAL, Run, Seen, read
from .verdict import Result, Verdict, show, verdict

if TYPE_CHECKING:
    from ..rewrite.ported import Ported

# Calls of a port; `rankup.data` and the like serve a script for one GPU as well.
_PORTED = {"setup", "shard", "wrap", "parallelize", "init_process_group"}
# What `port` gives to its verification: on a login node it is one of many.
_SECONDS, _MEMORY = 120.0, 4 << 30
_NO_FILE = ("FileNotFoundError: ", "NotADirectoryError: ")


class NotProved(UserError):  # noqa: N818
    """Nothing was compared.

    Attributes:
        why: what is lacking.
    """

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(f"not proved: {why}" + (f"; {hint}" if hint else ""))
        self.why = why


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


@dataclass(frozen=True)
class _Found:
    """What the runs show."""

    results: list[Result]
    notes: list[str]
    verdict: Verdict


def verify(request: Request) -> int:
    """Run, compare, print; return the exit code: 1 where something differs.

    Raises:
        UserError: there is no such script, or nothing in it to compare.
    """
    script = _script(request.original)
    _must_be_original(script)
    original = script.path
    stand_ins = tuple(_folder(one) for one in request.stand_ins)
    own = _port(original, needed=request.ported is None)
    made = {one.target: one.text for one in own.files} if own and request.ported is None else {}
    ported = next(iter(made)) if request.ported is None else _script(request.ported).path
    if ported.resolve() == original.resolve():
        raise UserError(f"{original} is both the original and the port: give two scripts")
    project = start.project_of(original, ported, made)
    found = _compared(
        project,
        _said(own, project.root),
        lambda run: say(f"running {run.title}"),
        args=request.args,
        stand_ins=stand_ins,
        seconds=request.seconds,
    )
    show(found.results, found.notes)
    print(f"\n{found.verdict}")
    codes = {"the same run": 0, "differs": EXIT_FAILED, "not proved": EXIT_BAD_INPUT}
    return codes[found.verdict.word]


def judge(ported: Ported, batch: str = "global") -> Verdict:
    """Verify what `port` has made and not yet written, within two minutes and 4 GiB.

    Args:
        batch: what the script's batch size means in the port.
    """
    if batch != "global":
        return Verdict("not proved", f"with --batch {batch} it is another run than the original's")
    try:
        made = {one.target: one.text for one in ported.files}
        project = start.project_of(ported.path, ported.target, made)
        limits = Limits(_SECONDS, min(_MEMORY, default_memory()))
        said = _said(ported, project.root)
        found = _compared(project, said, lambda _: None, seconds=_SECONDS, limits=limits)
    except NotProved as error:
        return Verdict("not proved", error.why)
    except (UserError, OSError) as error:
        return Verdict("not proved", f"it could not be run here: {_first(str(error))}")
    except KeyboardInterrupt:
        return Verdict("not proved", "it was interrupted")
    return found.verdict


def _compared(
    project: start.Project,
    said: Said,
    report: Callable[[Run], None],
    *,
    args: tuple[str, ...] = (),
    stand_ins: Iterable[Path] = (),
    seconds: float,
    limits: Limits | None = None,
) -> _Found:
    """Make the runs in copies of a project, and compare them.

    Raises:
        NotProved: the original does not train here.
    """
    if find_spec("torch") is None:
        raise NotProved("torch is not here", "verify where it is, on a compute node for example")
    options = {"args": args, "stand_ins": [*stand_ins], "seconds": seconds, "limits": limits}
    with start.sandbox() as box:
        made = start.run(box, project.root, start.placed(project, box), report, **options)  # type: ignore[arg-type]
        seen = {one.run.name: read(start.journals(box), one) for one in made.outcomes}
    why = _cut(made, len([*start.runs()]))
    if ORIGINAL not in seen:
        raise NotProved(why or "time: the script did not come to its end", "see --time")
    _must_train(seen[ORIGINAL], project.script)
    planned = [run for run in start.runs() if run.world]
    results = compare.results(seen, planned, said, cut=bool(why))
    return _Found(results, _notes(seen), verdict(results, _unseen(seen), why))


def _cut(made: start.Made, planned: int) -> str:
    """Why not all runs were made; empty where they were."""
    if made.why == "time" and len(made.outcomes) < planned:
        done = len(made.outcomes)
        return f"time: {done} of {planned} runs were made in {made.limits.seconds:.0f} s"
    if made.why == "memory":
        size = made.limits.memory / 1e9
        return f"memory: the scripts took more than {size:.1f} GB"
    return ""


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
    journal = original.ranks[0]
    if not original.failed:
        if not journal.of("step"):
            raise NotProved(f"{path} made no optimizer step: there is no training to compare")
        return
    if original.outcome.why == "time":
        seconds = f"{original.outcome.seconds:.0f} s"
        raise NotProved(f"time: {path} did not come to its end in {seconds}", "see --time")
    ends = journal.of("end")
    if missing := next((event["missing"] for event in ends if event.get("missing")), None):
        raise NotProved(
            f"package: {missing} is not installed in this Python",
            "install it, or give a folder with a stand-in for it: --stand-ins DIR",
        )
    text = compare.failure(original)
    give = f"give it what it needs after `--`, as in `rankup verify {path.name} -- --epochs 2`"
    if any(event.get("code") == 2 for event in ends):
        raise NotProved(f"arguments: {path} does not run without some: {_last(text)}", give)
    if asked := journal.of("connect"):
        host = asked[0]["host"]
        hint = f"`rankup fetch {path.name}` downloads what it needs\n{text}"
        raise NotProved(f"data: {path} asks {host}, and has no network here", hint)
    if _last(text).startswith(_NO_FILE):
        raise NotProved(f"data: {_last(text)}", text)
    raise NotProved(
        f"{path} itself does not come to its end here, on the CPU with little data: {_last(text)}",
        f"{give}\n{text}",
    )


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _notes(seen: Mapping[str, Seen]) -> list[str]:
    found = []
    original = seen[ORIGINAL].ranks[0]
    for event in original.of("cut"):
        if event["of"] is None:
            found.append(f"data: the first {event['size']} items of {event['kind']}")
        elif event["of"] != event["size"]:
            found.append(
                f"data: {event['size']} of {event['of']} of {event['kind']}, spread over all; "
                "further runs have a last batch of one sample, of six, and a full one"
            )
    if original.of("cut") and seen[ORIGINAL].run.varied:
        found.append("data: each sample's first array is scaled, by factors from 0.25 to 1")
    if any(event["shuffles"] for event in original.of("iterate")):
        found.append("shuffling: off, but for a run with random numbers of each rank's own")
    ranks = [rank for run in seen.values() for rank in run.ranks]
    found += [event["text"] for rank in ranks for event in rank.of("note")]
    if seen[ORIGINAL].run.gpu:
        found.append("torch.cuda.is_available() says yes, all the same it runs on the CPU")
    for run in start.runs():
        if not run.world and run.name in seen and seen[run.name].failed:
            found.append(f"left out: {run.title} does not come to its end")
    refused = {
        f"refused: {event.get('what') or 'network: ' + event['host']} ({event['where']})"
        for rank in ranks
        for event in rank.of("refused", "connect")
    }
    return list(dict.fromkeys([*found, *sorted(refused)]))


def _unseen(seen: Mapping[str, Seen]) -> list[str]:
    """What no check compares, as the original shows it."""
    original = seen[ORIGINAL]
    found = [event["text"] for event in original.ranks[0].of("unseen")]
    if any("\r" in end.stderr for end in original.outcome.ranks):
        found.append("progress bars")
    return found


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


def _port(original: Path, *, needed: bool) -> Ported | None:
    """The port that `rankup port` makes, whose remarks say which numbers are of a part."""
    from ..rewrite.ported import port

    try:
        ported = port(original)
    except UserError:
        if needed:
            raise
        return None
    if ported.why and needed:
        raise UserError(f"{original} was not ported: {ported.why}")
    return ported


def _said(ported: Ported | None, root: Path) -> Said:
    files = []
    for one in ported.files if ported is not None else ():
        path = one.path.resolve()
        if path.is_relative_to(root):
            remarks = tuple((note.line, note.text) for note in one.left)
            files.append(SaidFile(str(path.relative_to(root)), one.original, remarks))
    return Said(tuple(files))
