"""Verbs that start runs, or show how one would be split; and those that come with rankup."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..base.errors import UserError
from ..site.jobspec import OPTIONS, JobSpec, flag
from .app import app

Target = Annotated[str | None, typer.Argument(help="A recipe's name or a script's path.")]
Args = Annotated[list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")]


class _Run(TyperCommand):
    """Says of an option of a recipe that stands before its name where it belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = tuple(args)  # what is parsed is taken out of the list
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if option is None:
                raise
            from ..recipes import RECIPES

            # It is found before TARGET is, which may be any of the words. Where none of them is a
            # recipe, as with a script, the first recipe that knows the option is told.
            named = [RECIPES[word] for word in words if word in RECIPES][:1]
            known = [one for one in named or RECIPES.values() if option in one.option_names()]
            if not known:
                raise
            raise UserError(
                f"{option} is an option of a recipe: it stands behind the recipe's name, "
                f"rankup run [OPTIONS] {known[0].name} {option} ..."
            ) from None


def parameters(names: Iterable[str]) -> list[inspect.Parameter]:
    """Return what typer reads of a verb's options: their declarations in `JobSpec`."""
    types, found = get_type_hints(JobSpec), []
    for name in names:
        option, kind = OPTIONS[name], types[name]
        default = JobSpec.__dataclass_fields__[name].default
        words = [flag(name)] if kind is bool and not option.off else []
        words += [option.short] if option.short else []
        how: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
        how |= {"min": option.least, "max": option.most, "rich_help_panel": option.panel or None}
        if kind == tuple[str, ...]:
            kind, default = list[str] | None, None
        declared = Annotated[kind, typer.Option(*words, **how)]  # type: ignore[valid-type]
        found.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declared
            )
        )
    return found


def declare(verb: Any, names: Iterable[str]) -> None:
    """Put the parameters of `names` in the place of a verb's `**options`."""
    signature = inspect.signature(verb, eval_str=True)
    own = list(signature.parameters.values())[:-1]
    verb.__signature__ = signature.replace(parameters=[*own, *parameters(names)])
    verb.__annotations__ = {}


def spec(options: dict[str, Any], **more: Any) -> JobSpec:
    """Return what typer has read, with its lists as tuples."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in {**options, **more}.items()
        if value is not None
    }
    return JobSpec(**values)


def run(
    target: Target = None,
    args: Args = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take directives, set-up and TARGET out of this batch file; options win.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Run a recipe or a script: as a Slurm job, in an allocation, or on this machine."""
    words = tuple(args or ())
    if target is not None and set(words) & {"--help", "-h"}:
        from .. import recipes

        if target in recipes.RECIPES:
            print(recipes.find(target).help())
            return
    from ..launch.run import run as start

    asked = spec(options, target=target, args=words)
    if like is not None:
        from ..launch.like import filled

        asked = filled(like, asked)
    raise typer.Exit(start(asked))


declare(run, [name for name, one in OPTIONS.items() if one.typed])
app.command(cls=_Run, context_settings={"allow_interspersed_args": False})(run)


def scale(
    target: Target = None,
    args: Args = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Numbers of GPUs: 1,2,4,8.")
    ] = None,
    weak: Annotated[
        bool,
        typer.Option("--weak", help="A batch for each GPU, instead of the same batch on all."),
    ] = False,
    batch_option: Annotated[
        str | None,
        typer.Option(metavar="OPTION", help="With --weak: the script's option for its batch."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="SERIES", help="Go on with a series: its id, its folder, or `last`."),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="GPUs that one node takes; by default all it has.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Here, also where Slurm is.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run and do nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the jobs, and print the table.")
    ] = False,
    monitor: Annotated[bool, typer.Option(help="Sample what every GPU does.")] = True,
    **options: Any,
) -> None:
    """Run TARGET on more and more GPUs, and say what that gave: time, speed-up, loss."""
    from ..launch.scale.command import Wish
    from ..launch.scale.command import scale as start

    wish = Wish(
        target=target,
        args=tuple(args or ()),
        gpus=gpus,
        weak=weak,
        batch_option=batch_option,
        nproc=nproc,
        resume=resume,
        local=local,
        dry_run=dry_run,
        wait=wait,
        monitor=monitor,
        options=spec(options),
    )
    raise typer.Exit(start(wish))


_OF_A_JOB = ("time", "partition", "account", "qos", "reservation")
_OF_ITS_PROGRAMS = ("container", "environment", "env", "sbatch")
declare(scale, (*_OF_A_JOB, *_OF_ITS_PROGRAMS, "check"))
app.command(context_settings={"allow_interspersed_args": False})(scale)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show the options of this one.")] = None,
) -> None:
    """List the training runs, the scripts for one GPU and the methods by hand of rankup."""
    from ..recipes import BY_HAND, EXAMPLES, RECIPES, find

    if name is not None:
        print(find(name).help())
        return
    for recipe in RECIPES.values():
        print(f"{recipe.name:20} {recipe.summary}")
    print("\nscripts for one GPU, to port and to begin with, which `rankup demo --files .` writes:")
    for name, summary in EXAMPLES.items():
        print(f"{name:20} {summary}")
    print("\nmethods by hand, in plain PyTorch for torchrun, which it writes into by-hand/:")
    for name, summary in BY_HAND.items():
        print(f"{name:20} {summary}")
    print("\noptions of a recipe: rankup recipes NAME")


@app.command()
def demo(
    files: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead, write scripts, a text, articles and photos there, to try things on.",
        ),
    ] = None,
) -> None:
    """Check, port and verify a script for one GPU, run it on one rank and on two (CPU, 90 s)."""
    if files is not None:
        from ..launch.samples import lay_out

        raise typer.Exit(lay_out(files))
    from ..launch.demo import demo as show

    raise typer.Exit(show())
