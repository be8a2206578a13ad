"""The verb that predicts: `rankup plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..base.errors import RunFailed, UserError
from ..site.jobspec import JobSpec
from .app import app

_MODEL = "A model by its sizes, without TARGET; or in place of what TARGET says"
_MACHINE = "The machine; by default this one"
_CALIBRATE = "To measure this machine"
_OF_JOB: dict[str, Any] = {"rich_help_panel": _CALIBRATE}
_FOR_CALIBRATE = ("calibrate", "site", "partition", "nodes", "nproc", "account")
_MOST = 10**12
_MOST_PER_NODE = 1024
_LENGTH = "How long the run is, and what it may take"


@app.command(context_settings={"ignore_unknown_options": True})  # a recipe may know them
def plan(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="A recipe, a Hugging Face model (name, folder or config.json), or "
            "script.py:build_model."
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="A recipe's options, as for `rankup run`.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Numbers of GPUs; by default the fewest, doubled."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Sequences per optimizer step, over all GPUs."),
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp32"] | None, typer.Option(help="By default bf16.")
    ] = None,
    layouts: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Layouts that are shown of each number of GPUs."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every term with its formula and source.")
    ] = False,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw time and cost: .png, .pdf, .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    site: Annotated[
        str | None, typer.Option(help="A known site: jureca.", rich_help_panel=_MACHINE)
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Of the site.", rich_help_panel=_MACHINE)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="A100-40GB, H100-80GB, …", rich_help_panel=_MACHINE)
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST_PER_NODE, help="With --gpu.", rich_help_panel=_MACHINE),
    ] = None,
    nic: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="With --gpu: all adapters of a node, 100GB/s.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="300M, 20B; of an epoch.", rich_help_panel=_LENGTH)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Optimizer steps.", rich_help_panel=_LENGTH)
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Of --tokens each.", rich_help_panel=_LENGTH),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="At most: 5000core-h.", rich_help_panel=_LENGTH)
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="At most: 3d.", rich_help_panel=_LENGTH)
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Run a job of two minutes, and take its figures for this machine from now on.",
            rich_help_panel=_CALIBRATE,
        ),
    ] = False,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Of its job; two measure the network.", **_OF_JOB)
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Its ranks per node; by default its GPUs.", **_OF_JOB)
    ] = None,
    account: Annotated[str | None, typer.Option(help="That it is billed to.", **_OF_JOB)] = None,
    layers: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    hidden: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    heads: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="By default all heads.", rich_help_panel=_MODEL)
    ] = None,
    ffn: Annotated[
        int | None, typer.Option(help="By default 4 hidden.", rich_help_panel=_MODEL)
    ] = None,
    vocab: Annotated[str | None, typer.Option(metavar="N", rich_help_panel=_MODEL)] = None,
    seq: Annotated[
        int | None, typer.Option(help="Tokens of a sequence.", rich_help_panel=_MODEL)
    ] = None,
    gated: Annotated[
        bool | None, typer.Option(help="SwiGLU and the like.", rich_help_panel=_MODEL)
    ] = None,
    tied: Annotated[
        bool | None, typer.Option(help="One matrix for both ends.", rich_help_panel=_MODEL)
    ] = None,
) -> None:
    """Predict time, memory and cost of a training on numbers of GPUs, and the best layouts."""
    if calibrate:
        for parameter in context.command.params:
            source = context.get_parameter_source(parameter.name or "")
            given = source is not None and source.name == "COMMANDLINE"
            if given and parameter.name not in _FOR_CALIBRATE:
                raise UserError(
                    f"{parameter.opts[-1]} says nothing to --calibrate, which measures this "
                    "machine; options of its job are --partition, --nodes, --nproc, --account"
                )
        raise typer.Exit(_calibrate(site, partition, nodes, nproc, account))
    for option, value in (("--nodes", nodes), ("--nproc", nproc), ("--account", account)):
        if value is not None:
            raise UserError(
                f"{option} {value} is of the job of --calibrate; how many GPUs a plan is for is "
                "said by --gpus 8,16"
            )
    from ..plan.command import Wish
    from ..plan.command import plan as answer
    from ..plan.machines import Asked
    from ..plan.target import Sizes, whole
    from ..recipes import RECIPES

    words = list(args or ())
    if target in RECIPES and vocab is not None:  # a kind of tokens there
        words += ["--vocab", vocab]
        vocab = None
    sizes = Sizes(layers, hidden, heads, kv_heads, ffn, whole(vocab, "--vocab"), seq, gated, tied)
    wish = Wish(
        target=target,
        args=tuple(words),
        sizes=sizes,
        gpus=gpus,
        where=Asked(site, partition, gpu, gpus_per_node, nic),
        global_batch=global_batch,
        precision=precision,
        tokens=tokens,
        steps=steps,
        epochs=epochs,
        budget=budget,
        deadline=deadline,
        layouts=layouts,
        plot=plot,
        explain=explain,
        as_json=as_json,
    )
    raise typer.Exit(answer(wish))


def _calibrate(
    site: str | None,
    partition: str | None,
    nodes: int | None,
    nproc: int | None,
    account: str | None,
) -> int:
    """Run the job that measures, wait for it, and show what it gave; the exit code."""
    from ..launch.run import run
    from ..plan import machines, table

    profile = machines.profile_of(None)
    if site is not None and machines.profile_of(site).name != profile.name:
        raise UserError(
            f"--site {site}: --calibrate measures the machine that it runs on, which is "
            f"{profile.title}; call it there"
        )
    file = machines.calibration_file(profile, partition)
    new = file.with_name(f"new-{file.name}")
    new.unlink(missing_ok=True)
    job = JobSpec(
        target=str(Path(__file__).parent.parent / "recipes" / "measure.py"),
        args=(str(new),),
        nodes=nodes,
        nproc=nproc,
        account=account,
        partition=partition,
        follow=True,
        check=False,
        monitor=False,
    )
    code = run(job)
    if code:
        return code
    if not new.is_file():
        raise RunFailed(
            f"the job ended well, and {new} is not there; the nodes have to see that folder: "
            "RANKUP_CACHE names another"
        )
    try:
        measured = machines.read(new)
    except machines.UNUSABLE as error:
        old = "; the older calibration stays" if file.is_file() else ""
        raise RunFailed(
            f"measured too noisily: {error}; try again on an idle machine{old} "
            f"(the times that were measured are in {new})"
        ) from None
    new.replace(file)
    table.show_constants(measured, file)
    return 0
