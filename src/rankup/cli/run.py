"""`rankup run`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..base.errors import UserError
from ..site.jobspec import OPTIONS, JobSpec, flag
from .app import app


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
    target: Annotated[
        str | None, typer.Argument(help="A recipe's name or a script's path.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")
    ] = None,
    stage_fraction: Annotated[str | None, typer.Option(hidden=True)] = None,
    **options: Any,
) -> None:
    """Run a recipe or a script: as a Slurm job, in an allocation, or on this machine."""
    words = tuple(args or ())
    if target is not None and set(words) & {"--help", "-h"}:
        from .. import recipes

        if target in recipes.RECIPES:
            print(recipes.find(target).help())
            return
    if stage_fraction is not None:
        raise UserError(
            "--stage-fraction is gone: a file is staged as a whole, or read from where it lies; "
            "leave it away, or name the nodes' own disks with --stage-to"
        )
    from ..launch.run import run as start

    raise typer.Exit(start(spec(options, target=target, args=words)))


declare(run, OPTIONS)
app.command(cls=_Run, context_settings={"allow_interspersed_args": False})(run)
