"""Whether what a job needs is here, and what the job has to be told so that it finds it."""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import UserError
from ..base.findings import Finding
from ..base.text import clean
from ..login import record
from ..login.record import Record
from ..script.downloads import Download, read
from ..script.names import Comprehension, Names, calls_in, root_name, walk, written
from ..site.config import Config
from ..site.rundir import Job

SYNTAX = "RK100"
_LINES = 4  # of findings; `rankup check` has them all
_MOST_NAMED = 3
_MOST_PLACES = 20
# What bash or Slurm sets itself; a record that is told so was written by somebody else.
_NAME = re.compile(
    r"(?!(SLURM|RANKUP|BASH)_|(PATH|IFS|UID|EUID|PPID|SHELLOPTS|BASHOPTS)$)[A-Za-z_][A-Za-z0-9_]*"
)
_PLAIN = re.compile(r"[\w./:@%+=,-]+")


@dataclass(frozen=True)
class Fetched:
    """What was fetched for a job.

    Attributes:
        variables: where the caches are.
        offline: what tells the libraries that were used that there is no network.
        places: where the parts lie that are there, by name.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    offline: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Path] = field(default_factory=dict)

    def folders(self) -> list[str]:
        """The caches and the parts' own folders, for those who have to mount them."""
        parts = [path if path.is_dir() else path.parent for path in self.places.values()]
        found = [*self.variables.values(), *map(str, parts)]
        return list(dict.fromkeys(text for text in found if os.path.isabs(text)))


def fetched(project: Path, job: Job, *, with_network: bool) -> Fetched:
    """What a job is told: by the records of what was fetched by name, and by that of its script.

    Args:
        with_network: the job could still fetch; then only a proof with just its arguments is reason
            enough to forbid it that.
    """
    known = record.read(*_folders(project, job))
    by_name = [one for one in known if not one.key.startswith("script:")]
    own, exact = _of(project, job)
    used = [*sorted(by_name, key=lambda one: one.at), *([own] if own else [])]
    proved = own is not None and exact and own.proved
    told = used if not with_network else [own] if own and proved else []
    return Fetched(
        _merged(one.variables for one in used),
        {k: v for k, v in _merged(one.offline for one in told).items() if _PLAIN.fullmatch(v)},
        _places(used),
    )


def require(config: Config, job: Job, internet: bool | None, *, allow_missing: bool) -> list[str]:
    """Refuse a job that would not find what it needs; what there is to say otherwise, in lines.

    What `rankup.toml` lists has to be there always, what the script fetched only where the nodes
    are not known to have `internet`.

    Raises:
        UserError: what is missing, and what fetches it; with `allow_missing` that is a warning.
    """
    project = config.project(Path.cwd())
    own, exact = _of(project, job)
    listed = record.unmet(config)
    missing = [str(one) for one in listed]
    # What rankup.toml lists is said once.
    known = own is not None and own.key in {one.key for one in listed}
    if own is not None and internet is not True and not known:
        missing += [f"{why}; {command(job)}" for why in own.faults()]
    missing = list(dict.fromkeys(missing))
    if missing and not allow_missing:
        lines = "".join(f"\n  - {clean(line)}" for line in missing)
        raise UserError(
            f"the job would not find all that it needs:{lines}\n"
            "Fetch it on a login node, or run the job without it by --allow-missing"
        )
    said = [f"warning: {line}" for line in missing]
    if job.kind == "script":
        said += [] if known else _doubts(project, job, own, exact, internet)
    return [clean(line) for line in said]


def _doubts(
    project: Path, job: Job, own: Record | None, exact: bool, internet: bool | None
) -> Iterator[str]:
    """What is no reason to refuse the job, and may end it all the same."""
    if own is None:
        if internet is False:
            yield from _unfetched(project, job, "nothing was fetched for this script")
        return
    if not exact:
        yield (
            f"note: {Path(job.target).name} was fetched with other arguments; what these need "
            f"besides, `{command(job)}` brings"
        )
    if internet is True:
        return
    for why in own.doubts():
        yield f"warning: {Path(job.target).name}: {why}; {command(job)}"
    if own.proof == "none" and not own.items and internet is False:
        yield from _unfetched(project, job, "so nothing was fetched for this script")


def command(job: Job) -> str:
    """What fetches for a script, as it is typed in the job's folder."""
    target = os.path.relpath(job.target, job.cwd)
    return record.command_line(
        ["rankup", "fetch", job.target if target.startswith("..") else target, *job.args]
    )


def elsewhere(
    variables: Mapping[str, str], environment: Mapping[str, str], said: Mapping[str, str]
) -> list[str]:
    """What to say of caches that the environment has at another place than what was fetched.

    Args:
        said: what the user gives the job, which holds.
    """
    return [
        clean(
            f"note: {name} is {environment[name]} here; what was fetched lies in {value}, so that "
            "is what the job gets"
        )
        for name, value in variables.items()
        if name not in said and environment.get(name, value) != value
    ]


def _of(project: Path, job: Job) -> tuple[Record | None, bool]:
    if job.kind != "script":
        return None, False
    return record.of_script(project, Path(job.target), tuple(job.args))


def _folders(project: Path, job: Job) -> tuple[Path, ...]:
    """Where records for this job may lie."""
    return record.folders(project, Path(job.target)) if job.kind == "script" else (project,)


def _places(used: Iterable[Record]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    items = (item for one in used for item in one.items if not item.missing())
    for item in itertools.islice(items, _MOST_PLACES):
        found[item.path if item.name in found else item.name] = Path(item.path)
    return found


def _unfetched(project: Path, job: Job, why: str) -> Iterator[str]:
    """Warnings of what a script fetches by reading it, which may have been fetched otherwise."""
    try:
        found = read(Path(job.target), tuple(job.args), Path(job.cwd)).downloads
    except UserError as error:
        yield f"warning: {error}"
        return
    keys = {one.key for one in record.read(*_folders(project, job))}
    wanted = [one for one in found if not _has(keys, one)]
    if not wanted:
        return
    yield f"warning: {why}, and the nodes have no internet. It wants:"
    yield from (f"  {_line(one, job)}" for one in wanted[:_MOST_NAMED])
    if len(wanted) > _MOST_NAMED:
        yield f"  and {len(wanted) - _MOST_NAMED} more (`rankup fetch --no-run` lists them)"
    yield f"  If that is not here yet: {command(job)}"


def _has(keys: set[str], one: Download) -> bool:
    """Whether it was fetched by name: at the same revision, or at one where none is asked for."""
    key = f"{one.what}:{one.wanted}"
    return any(known == key or (not one.revision and known.startswith(f"{key}@")) for known in keys)


def _line(one: Download, job: Job) -> str:
    file = os.path.relpath(one.file, job.cwd)
    return f"{one.wanted or one.why} ({one.how}, {file}:{one.line})"


def _merged(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The tables laid over each other, without what no job script could set."""
    return {
        name: value
        for table in tables
        for name, value in table.items()
        if isinstance(value, str) and _NAME.fullmatch(name) and value.isprintable()
    }


def before_submit(kind: str, target: str, ranks: int, wanted: bool) -> list[str]:
    """Return what to say about a job's script on so many ranks.

    Raises:
        UserError: Python cannot read it, so the job would end at once; or many ranks would do
            something wrong with it.
    """
    if kind != "script" or not wanted:
        return []
    found = _found(Path(target))
    broken = next((one for one in found if one.code == SYNTAX), None)
    if broken is not None:
        raise UserError(
            f"{broken.place}: {broken.message}; the job would end at once. {broken.todo}".rstrip()
            + " (--no-check submits it all the same)"
        )
    lines = _lines(found, Path(target)) if ranks > 1 else []
    if lines and any(one.level == "error" for one in found):
        text = "\n  ".join(lines)
        raise UserError(
            f"this script is not ready for {ranks} ranks:\n  {text}\n"
            f"Write one that is: rankup port {target}; --no-check submits it as it is"
        )
    return lines


def beside(job: Job, ranks: int, wanted: bool) -> None:
    """The same beside a run on this machine, whose start waits for the compiler alone.

    Raises:
        UserError: Python cannot read the script.
    """
    if job.kind != "script" or not wanted:
        return
    script = Path(job.target)
    try:
        compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{script}:{error.lineno}" if isinstance(error, SyntaxError) else str(script)
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(
            f"{place}: {message}; no rank was started (--no-check starts them all the same)"
        ) from None
    if ranks < 2:
        return
    threading.Thread(target=_say, args=(Path(job.target),), daemon=True).start()


def _say(path: Path) -> None:
    try:
        lines = _lines([one for one in _found(path) if one.code != SYNTAX], path)
    except Exception as error:  # it takes nothing from the run
        lines = [f"note: {path.name} was not checked: {type(error).__name__}: {error}"]
    if lines:
        print("\n".join(map(clean, lines)), file=sys.stderr, flush=True)


def _found(path: Path) -> tuple[Finding, ...]:
    from ..port.check import check  # not for each command that starts a run

    return check([path])


def _lines(found: Iterable[Finding], path: Path) -> list[str]:
    """A few lines: the errors first, then how to see all of it."""
    found = sorted(found, key=lambda one: one.level != "error")
    if not found:
        return []
    shown = [f"{one.level}: {one.place}: {one.message} [{one.code}]" for one in found[:_LINES]]
    more = f"{len(found) - _LINES} more, and " if len(found) > _LINES else ""
    return [*shown, f"note: {more}what to do: rankup check {path}"]


# Arguments that a script's own argparse refuses: its parser is built anew, where it is plain.
_ACTIONS = ("store", "store_true", "store_false", "store_const", "append", "append_const", "count")
_TYPES = {"builtins.int": int, "builtins.float": float, "builtins.str": str}
_CLASS = "argparse.ArgumentParser"
_ENDS = frozenset({"exit", "_exit", "quit", "execv", "execve", "execvp", "execvpe"})
# What a declaration says that changes nothing about what is refused.
_WORDS = ("prog", "usage", "description", "epilog", "formatter_class", "help", "metavar", "dest")


class _Refused(Exception):  # noqa: N818 - caught here
    """The arguments do not fit, in argparse's words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def refuse_arguments(job: Job, wanted: bool) -> None:
    """Refuse arguments with which each rank of a script would end at once, where that is known.

    Raises:
        UserError: the script's own parser refuses them.
    """
    if job.kind != "script" or not wanted or {"-h", "--help"} & set(job.args):
        return
    try:
        parser = _parser(ast.parse(Path(job.target).read_bytes()))
    except (SyntaxError, ValueError, TypeError, RecursionError, argparse.ArgumentError):
        return  # said elsewhere; or there is more to it than plain values
    try:
        parser.parse_args(job.args)
    except _Refused as error:
        raise UserError(
            f"{Path(job.target).name} would end at once: {error} "
            "(--no-check starts it all the same)"
        ) from None


def _parser(tree: ast.Module) -> _Parser:
    """Return the script's one parser, built anew from calls in one block.

    Raises:
        ValueError: there is none, or it is not read in full.
    """
    names = Names(tree)
    [made] = [one for one in names.all(ast.Call) if written(one.func).endswith("ArgumentParser")]
    stored = [one for one in names.all(ast.Attribute) if isinstance(one.ctx, ast.Store)]
    changed = any(names.dotted(one).startswith(_CLASS) for one in stored)
    if changed or _surely(names, made.func) != _CLASS:
        raise ValueError("a class of its own, or another library's")
    words = {one.attr for one in names.all(ast.Attribute)} | {one.id for one in names.all(ast.Name)}
    if "argv" in words:
        raise ValueError("the arguments may be changed")
    match names.parents[made]:
        case ast.Assign(targets=[ast.Name(id=name)]) as begin:
            block = names.block(begin)
        case _:
            raise ValueError("it has no name")
    parser, parsed = _Parser(**_declared(names, made)), 0
    for use in (one for one in names.all(ast.Name) if one.id == name):
        method = names.parents[use]
        if method is begin:
            continue
        call = names.parents[method]
        if not isinstance(call, ast.Call) or (at := _statement(names, call)) not in block:
            raise ValueError("something else is done with it")
        match method:
            case ast.Attribute(attr="add_argument"):
                parser.add_argument(*map(ast.literal_eval, call.args), **_declared(names, call))
            case ast.Attribute(attr="parse_args") if not (call.args or call.keywords):
                _refuse_unsure(names, at)
                parsed += 1
            case _:
                raise ValueError("something else is done with it")
    if parsed != 1:
        raise ValueError("it does not parse, or does so again")
    return parser


def _surely(names: Names, node: ast.expr) -> str:
    """Return the dotted name of what is imported or built in, empty where it may be another."""
    _, bindings = names.bindings(root_name(node), names.scope(node))
    may_come = isinstance(node, ast.Name) and names.stars  # by `from module import *`
    return "" if len(bindings) > 1 or may_come else names.dotted(node)


def _statement(names: Names, call: ast.Call) -> ast.stmt:
    """Return the statement that makes a call each time that it is run.

    Raises:
        ValueError: it may do without.
    """
    for node in names.up(call):
        if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
            return node
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda | Comprehension | ast.stmt):
            break
    raise ValueError("it depends")


def _refuse_unsure(names: Names, statement: ast.stmt) -> None:
    """Raise ValueError where a script may do without a statement."""
    block = names.block(statement)
    if any(map(_may_leave, block[: block.index(statement)])):
        raise ValueError("it may have ended before")
    match names.parents[statement]:
        case ast.Module():
            pass
        case ast.If(test, body) as around if (
            body is block and ast.unparse(test) == "__name__ == '__main__'"
        ):
            _refuse_unsure(names, around)
        case ast.FunctionDef(name, decorator_list=[]) as around:
            [call] = [one for one in names.all(ast.Call) if written(one.func) == name]
            _, bindings = names.bindings(name, names.scope(call))
            if [one.node for one in bindings] != [around]:
                raise ValueError("another may be called")
            _refuse_unsure(names, _statement(names, call))
        case _:
            raise ValueError("it depends")


def _may_leave(statement: ast.stmt) -> bool:
    """Return whether what stands behind a statement may not be come to."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    ends = (written(call.func).rpartition(".")[2] for call in calls_in(statement))
    leaves = any(isinstance(node, ast.Return | ast.Raise) for node in walk(statement))
    return leaves or not _ENDS.isdisjoint(ends)


def _declared(names: Names, call: ast.Call) -> dict[str, Any]:
    """Return the keywords of a parser or an option, as far as they decide what is refused."""
    return dict(_keywords(names, {one.arg or "**": one.value for one in call.keywords}))


def _keywords(names: Names, given: dict[str, ast.expr]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name == "type":
            yield name, _TYPES.get(_surely(names, value), str)
        elif name == "choices":
            # Values that a type of the script's own has made are not these.
            if "type" not in given or _surely(names, given["type"]) in _TYPES:
                yield name, ast.literal_eval(value)
        elif name == "action" and _surely(names, value) == "argparse.BooleanOptionalAction":
            yield name, argparse.BooleanOptionalAction
        elif name == "action" and ast.literal_eval(value) not in _ACTIONS:
            raise ValueError("an action of its own")
        elif name in ("action", "nargs", "required", "const", "add_help", "allow_abbrev"):
            yield name, ast.literal_eval(value)
        elif name not in (*_WORDS, "default"):
            raise ValueError(f"{name} is not known")
