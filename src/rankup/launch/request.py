"""The run that a `JobSpec` asks for, its split over ranks, and the state of the code it runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import __version__, recipes
from ..base import gone
from ..base.errors import UserError, nearest
from ..base.files import user_path, write_atomic
from ..parallel.layout import crossing
from ..script.source import refuse_notebook
from ..site import rundir
from ..site.jobspec import OPTIONS, JobSpec, flag
from ..site.rundir import Job
from ..train.options import refuse_other_run

# A script may have options of these names itself.
_COMMON = frozenset(flag(name) for name, option in OPTIONS.items() if option.common)
_TYPED = [flag(name) for name, option in OPTIONS.items() if option.typed]
_OWN = frozenset(("--no-monitor", "--no-check", "--like", *_TYPED))
SWITCH = "RANKUP_MONITOR"  # 0: no run started from this shell is sampled
MOST_BYTES = 20 * 2**20  # a diff larger than this is data
_MOST_NAMES = 200
# Whatever the user's settings make of a diff that is looked at, this one has to apply.
_DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")


def job_of(target: str, args: tuple[str, ...]) -> tuple[str, str]:
    """`recipe` and its name, or `script` and its absolute path, with arguments that may do.

    Raises:
        UserError: there is no such target, or a recipe refuses its arguments.
    """
    kind, name = _target(target)
    _notice_own_options(kind, args, strict=True)
    if kind == "recipe":
        recipes.find(name).parse(args)
    return kind, name


def new(spec: JobSpec, runs: Path, *, strict: bool = False) -> tuple[Path, Job]:
    """The run that is asked for and the folder it will live in; nothing is written yet.

    With `strict`, where a mistake costs a job, options of `rankup run` behind TARGET are refused.
    """
    if spec.target is None:
        raise UserError("nothing to run: name a recipe or a script, or --resume a run")
    kind, target = _target(spec.target, spec.module)
    if spec.like is None:  # else they were not typed here
        _notice_own_options(kind, spec.args, strict)
    kept = recipes.find(target).parse(spec.args).kept if kind == "recipe" else {}
    job = Job(
        id=spec.id or rundir.new_id(),
        kind=kind,
        target=target,
        args=list(spec.args),
        cwd=str(Path.cwd()),
        versions=_versions(),
        git=code_state(Path.cwd()),
        module=spec.target if spec.module else None,
        kept=kept,
    )
    if spec.out is None:
        return (runs / job.name / job.id).resolve(), job
    return user_path(spec.out, "--out").resolve(), job


@contextmanager
def created(directory: Path, job: Job, runs: Path) -> Iterator[None]:
    """Make the run directory with all that the run needs; it goes again if the block raises.

    One that lies elsewhere (`--out`) is linked from among the others in `runs`.
    """
    link = runs / job.name / job.id
    folders = dict.fromkeys((directory, *directory.parents, *link.parents))
    made = [folder for folder in folders if not folder.exists()]
    refuse_writable_by_others(directory)
    rundir.create(directory)
    try:
        if job.kind == "recipe":
            recipes.find(job.target).prepare(job.args, job.kept, directory)
        keep_code(Path(job.cwd), Path(job.target) if job.kind == "script" else None, directory)
        rundir.write(directory, job)
        if link.resolve() != directory.resolve():
            with suppress(OSError):  # who names a folder of their own may have no right to `runs`
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(directory)
        yield
    except BaseException:
        # Half a run directory helps nobody: what was made goes, what was there stays.
        with suppress(OSError):  # what is wrong is what was raised
            if link.is_symlink():
                link.unlink()
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for folder in made:
                folder.rmdir()
        raise


def refuse_writable_by_others(directory: Path) -> None:
    """Refuse a run directory in which somebody else could change what a job runs.

    Raises:
        UserError: all may write there, or it belongs to another user.
    """
    try:
        known = directory.stat()
    except FileNotFoundError:
        return
    if known.st_mode & 0o002:
        raise UserError(
            f"all users may write to {directory}, and so change what runs as you; "
            f"chmod o-w {shlex.quote(str(directory))}, or name another folder with --out"
        )
    if known.st_uid not in (os.getuid(), 0):
        raise UserError(f"{directory} belongs to another user; start a run of your own")


def resumed(spec: JobSpec, runs: Path) -> tuple[Path, Job]:
    """The run to go on with, its arguments overridden by what was asked for now."""
    assert spec.resume is not None
    if spec.out is not None:
        raise UserError("--resume goes on in the run's own directory; leave --out away")
    directory = rundir.find(runs, spec.resume)
    refuse_writable_by_others(directory)
    job = rundir.read(directory)
    if not Path(job.cwd).is_dir():
        raise UserError(f"{job.cwd}, the folder the run was started in, is not there any more")
    if job.kind == "recipe":
        _options(job).refuse_changed()
    if spec.target is None:
        return directory, job
    kind, target = _target(spec.target, spec.module)
    if (kind, target) != (job.kind, job.target):
        raise UserError(
            f"--resume {spec.resume} is a run of {job.target}, not of {target}; "
            "leave TARGET away, or start a new run"
        )
    args = [*job.args, *spec.args]  # a later flag overrides an earlier one
    if kind == "recipe":
        recipe = recipes.find(target)
        options = recipe.parse(args, job.kept)
        refuse_other_run(_options(job).fixed, options.fixed)
        here = Path.cwd()
        os.chdir(job.cwd)  # paths among the options are relative to it
        try:
            recipes.refuse_beyond_epochs(options, directory)
        finally:
            os.chdir(here)
    return directory, replace(job, args=args)


def wanted(asked: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Return False where the user wants no samples, of this run or in the whole shell."""
    return asked and environment.get(SWITCH, "1") != "0"


def _target(text: str, module: bool = False) -> tuple[str, str]:
    """`recipe` and its name, or `script` and its absolute path."""
    if module:
        if not all(text.split(".")):
            raise UserError(f"-m {text}: a module is named from its first package on: -m pkg.train")
        path = Path(*text.split("."))
        for file in (Path(f"{path}.py"), path / "__main__.py"):
            if file.is_file():
                return "script", str(file.resolve())
        raise UserError(
            f"-m {text}: neither {path}.py nor {path}/__main__.py is here; go to the folder that "
            "holds the package, or give the script's path without -m"
        )
    if text in recipes.RECIPES:
        return "recipe", text
    path = user_path(text, "TARGET")
    if path.is_file():
        refuse_notebook(path)
        if path.suffix != ".py":
            raise UserError(f"{text} is not a Python script (.py) and not a recipe")
        return "script", str(path.resolve())
    gone.refuse(text)
    if path.suffix == ".py" or path.is_dir() or "/" in text:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{text} {what}; TARGET is a script's path or a recipe's name")
    raise UserError(
        f"{text!r} is neither a script here nor a recipe; {nearest(text, recipes.RECIPES)}"
    )


def _notice_own_options(kind: str, args: tuple[str, ...], strict: bool) -> None:
    """`rankup run TARGET --nproc 2`: what follows TARGET belongs to it, which is easily missed."""
    for word in args:
        if word == "--":  # said on purpose
            return
        name = word.partition("=")[0]
        if name in _OWN and not (kind == "script" and name in _COMMON):
            message = (
                f"{name} stands after TARGET and so belongs to it; as an option of `rankup run`"
            )
            if kind == "recipe":
                raise UserError(f"{message} it has to stand before: rankup run {name} ... TARGET")
            if strict:
                raise UserError(
                    f"{message} it has to stand before. If it is the script's, put `--` before it, "
                    f"which the script then gets, too"
                )
            print(f"warning: {message} it would have to stand before", file=sys.stderr)


def _versions() -> dict[str, str]:
    found = {"rankup": __version__, "python": platform.python_version()}
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = importlib.metadata.version("torch")
    return found


def _options(job: Job) -> Any:
    return recipes.find(job.target).parse(job.args, job.kept)


def same_result(job: Job) -> bool:
    """Return whether the number of ranks changes the time a job takes alone."""
    if job.kind != "recipe":
        return True
    return not _options(job).apart


def split_notes(job: Job, nodes: int, per_node: int) -> list[str]:
    """Return what to say about a job's split over `nodes` of `per_node` ranks; nothing of scripts.

    Raises:
        UserError: the sizes that were asked for do not make up the number of ranks.
    """
    if job.kind != "recipe":
        return []
    options = _options(job)
    options.need_packages()
    layout = options.layout(nodes * per_node, per_node)
    said = options.notes(layout)
    if warning := crossing(layout, per_node):
        said.append(warning)
    found = [f"warning: {text}" for text in said]
    if idle := options.idle_ranks(layout):
        ranks = layout.world_size
        found.append(
            f"warning: a global batch of {options.global_batch} in micro-batches of "
            f"{options.micro_batch} feeds {ranks - idle} of {ranks} ranks; {idle} will idle. "
            + ("The result is the same; " if same_result(job) else "")
            + "a smaller --micro-batch or fewer ranks wastes nothing"
        )
    return found


def code_state(folder: Path) -> dict[str, Any]:
    """Commit of the folder's repository and what is not in it; empty outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    untracked = (_git(folder, "ls-files", "--others", "--exclude-standard", "-z") or b"").split(
        b"\0"
    )
    names = [name.decode(errors="replace") for name in untracked if name]
    found: dict[str, Any] = {
        "commit": commit.decode().strip(),
        "changed": bool(_git(folder, "status", "--porcelain")),
    }
    if names:
        found["untracked"] = names[:_MOST_NAMES]
    return found


def keep_code(folder: Path, target: Path | None, directory: Path) -> None:
    """Write what differs from the commit into the run directory, readable by its owner.

    `code.diff` is what `git apply` takes on the commit that `job.json` names. The script itself is
    copied as well where commit and diff do not hold it.
    """
    diff = _git(folder, *_DIFF, *_PREFIXES, "HEAD")
    known = diff is not None and len(diff) <= MOST_BYTES
    if diff and known:
        write_atomic(directory / "code.diff", diff, private=True)
    if target is None:
        return
    if not known or _git(folder, "ls-files", "--error-unmatch", str(target)) is None:
        write_atomic(directory / target.name, target.read_bytes(), private=True)


def _git(folder: Path, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "--literal-pathspecs", "-C", str(folder), *words],  # noqa: S607 - the user's own git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def typed() -> list[str]:
    """The command line that this process was given, without what may be secret in it."""
    return ["rankup", *without_values(sys.argv[1:])]


def without_values(words: list[str]) -> Iterator[str]:
    """A command line without what `--env` gave: it may be secret."""
    given = False
    for word in words:
        option, equals, entry = word.partition("=")
        if given or (option == "--env" and equals):
            text = word if given else entry
            name, has_value, _ = text.partition("=")
            yield ("" if given else "--env=") + name + ("=..." if has_value else "")
            given = False
        else:
            given = word == "--env"
            yield word
