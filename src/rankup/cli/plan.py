"""The verb that predicts: `rankup plan`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..base import gone
from .app import app

_MODEL = "A model by its sizes, without TARGET; or in place of what TARGET says"
_MACHINE = "The machine; by default this one"
_MOST = 10**12
_MOST_PER_NODE = 1024
_LENGTH = "How long the run is, and what it may take"


@app.command(context_settings={"ignore_unknown_options": True})  # a recipe may know them
def plan(
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
        bool,
        typer.Option("--explain", help="Every term with its formula and source; who holds what."),
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
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Take its pace from a run of language-model on it.",
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
    for word in (target, *(args or ())):
        gone.refuse("plan", str(word))
    from ..plan.answer import Request
    from ..plan.command import plan as answer
    from ..plan.machines import Asked
    from ..plan.target import Sizes, whole
    from ..recipes import RECIPES

    words = list(args or ())
    if target in RECIPES and vocab is not None:  # a kind of tokens there
        words += ["--vocab", vocab]
        vocab = None
    sizes = Sizes(layers, hidden, heads, kv_heads, ffn, whole(vocab, "--vocab"), seq, gated, tied)
    request = Request(
        target=target,
        args=tuple(words),
        sizes=sizes,
        gpus=gpus,
        where=Asked(site, partition, gpu, gpus_per_node, nic),
        measured=measured,
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
    raise typer.Exit(answer(request))
