"""The verb that predicts: `rankup plan`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .app import app

_MODEL = "A model by its sizes, without TARGET; or in place of what TARGET says"
_MACHINE = "The machine; by default this one"
_LENGTH = "How long the run is, and what it may take"


@app.command(context_settings={"allow_interspersed_args": False})
def plan(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A recipe, a Hugging Face model (name, folder or config.json), or "
            "script.py:build_model."
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="A recipe's own options, as for `rankup run`.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Numbers of GPUs; by default the fewest, doubled."),
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences per optimizer step, over all GPUs.")
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp32"] | None, typer.Option(help="By default bf16.")
    ] = None,
    layouts: Annotated[
        int | None, typer.Option(min=1, help="Layouts that are shown of each number of GPUs.")
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
        int | None, typer.Option(min=1, help="With --gpu.", rich_help_panel=_MACHINE)
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
        int | None, typer.Option(min=1, help="Optimizer steps.", rich_help_panel=_LENGTH)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of --tokens each.", rich_help_panel=_LENGTH)
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="At most: 5000core-h.", rich_help_panel=_LENGTH)
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="At most: 3d.", rich_help_panel=_LENGTH)
    ] = None,
    layers: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    hidden: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    heads: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="By default all heads.", rich_help_panel=_MODEL)
    ] = None,
    ffn: Annotated[
        int | None, typer.Option(help="By default 4 hidden.", rich_help_panel=_MODEL)
    ] = None,
    vocab: Annotated[int | None, typer.Option(rich_help_panel=_MODEL)] = None,
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
    from ..plan.command import Wish
    from ..plan.command import plan as answer
    from ..plan.machines import Asked
    from ..plan.target import Sizes

    sizes = Sizes(layers, hidden, heads, kv_heads, ffn, vocab, seq, gated, tied)
    wish = Wish(
        target,
        tuple(args or ()),
        sizes,
        gpus,
        Asked(site, partition, gpu, gpus_per_node, nic),
        global_batch,
        precision,
        tokens,
        steps,
        epochs,
        budget,
        deadline,
        layouts,
        plot,
        explain,
        as_json,
    )
    raise typer.Exit(answer(wish))
