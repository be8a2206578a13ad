"""Verbs of data: pack, inspect, bench-data, stage, tokenize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command()
def pack(
    source: Annotated[
        str, typer.Argument(help="Class folders, a list, a tar, zip, Parquet, arrays, ...")
    ],
    out: Annotated[str, typer.Argument(help="What to make: NAME.h5, NAME.sqsh, or a folder.")],
    to: Annotated[
        str | None, typer.Option(help="hdf5, arrow, tar or squashfs; by default OUT's name says.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A known data set: imagenet or imagewoof.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="What samples are called that belong to no split.")
    ] = "train",
    label: Annotated[str | None, typer.Option(help="Column of the labels.")] = None,
    key: Annotated[str | None, typer.Option(help="Column of the names.")] = None,
    fields: Annotated[
        str | None, typer.Option(help="Columns that are taken: a,b; by default all.")
    ] = None,
    bad: Annotated[
        str, typer.Option(help="Damaged images: keep (and list), skip, or fail.")
    ] = "keep",
    resize: Annotated[
        int | None, typer.Option(help="Re-encode images, the shorter side this many pixels.")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Bytes of a tar: 1GB, 512MiB.")] = "1GB",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a pack that was interrupted.")
    ] = False,
    no_fsync: Annotated[
        bool,
        typer.Option("--no-fsync", help="Do not wait for the disk; for benchmarks."),
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Turn a million small files into a few, in a standard format."""
    from ..data.pack.command import pack as start
    from ..data.pack.source import Request

    request = Request(
        source=source,
        out=out,
        to=to,
        preset=preset,
        split=split,
        label=label,
        key=key,
        fields=tuple(part.strip() for part in (fields or "").split(",") if part.strip()),
        bad=bad,
        resize=resize,
        shard_size=shard_size,
        resume=resume,
        fsync=not no_fsync,
        workers=workers,
        dry_run=dry_run,
        as_json=as_json,
    )
    raise typer.Exit(start(request, _quota))


@app.command()
def inspect(
    file: Annotated[str, typer.Argument(help="A container, or a folder or file of anybody's.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare each sample with its hash.")
    ] = False,
    extract: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the samples as files again.")
    ] = None,
    samples: Annotated[int, typer.Option(help="How many of each split are shown.")] = 3,
    split: Annotated[str | None, typer.Option(help="This split alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a container holds; check it; give its files back."""
    from ..data.inspect import show

    code = show(file, verify=verify, extract=extract, as_json=as_json, samples=samples, split=split)
    raise typer.Exit(code)


def _quota(path: Path) -> list[str]:
    from ..site import mounts

    if mounts.kind_of(path) == "tmpfs":  # memory has none
        return []
    from ..login.doctor import quota

    return quota.lines(path)


@app.command("bench-data")
def bench_data(
    file: Annotated[str, typer.Argument(help="What is fed from: a pack, or a folder or file.")],
    split: Annotated[
        str | None, typer.Option(help="By default train, where there are several.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="By default the first one.")] = None,
    transform: Annotated[
        str | None,
        typer.Option(help="module:function of yours, or photos:RandomResizedCrop(224)."),
    ] = None,
    size: Annotated[int, typer.Option(help="Pixels that photos are cropped to without one.")] = 224,
    batch: Annotated[int, typer.Option(help="Samples of a batch of one loop.")] = 256,
    demand: Annotated[
        float, typer.Option(help="Samples/s that the node's GPUs want: four A100, ResNet-50: 9200.")
    ] = 9200.0,
    workers: Annotated[
        int | None, typer.Option(help="Of the Loader; by default one per core.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How thoroughly; all of it takes about three times as long.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how fast a file feeds, which part is slow, and what to change."""
    from ..data.bench import Request, bench_data

    request = Request(file, split, field, transform, size, batch, demand, workers, seconds, as_json)
    raise typer.Exit(bench_data(request))


@app.command()
def stage(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="A pack, or a file or folder.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where to; by default $RANKUP_STAGE_DIR or /dev/shm."),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory kept for the job's processes: 40GB."),
    ] = None,
    sent: Annotated[
        bool, typer.Option("--sent", help="Of the job script: take what sbcast sent.", hidden=True)
    ] = False,
    mount: Annotated[
        bool, typer.Option("--mount", help="Mount a SquashFS as a folder, and print where.")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Remove the copies of this job.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Say what is staged on this node.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy packs into this node's memory, where `rankup.data.open` finds them by itself.

    Once per job and node: the first process copies, others wait and share.
    """
    from ..data.stage.command import Request
    from ..data.stage.command import stage as start

    asked = Request(
        files=tuple(files or ()),
        to=to,
        reserve=reserve,
        release=release,
        listing=listing,
        mount=mount,
        sent=sent,
        as_json=as_json,
    )
    raise typer.Exit(start(asked))


@app.command()
def tokenize(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Text, .jsonl, .parquet, .arrow, or folders of it."),
    ],
    to: Annotated[str, typer.Option(metavar="FOLDER", help="What to make.")],
    tokenizer: Annotated[str, typer.Option(metavar="FILE", help="tokenizer.json of a model.")],
    field: Annotated[str, typer.Option(help="Column, or field of JSON, of the texts.")] = "text",
    end_token: Annotated[
        str | None, typer.Option(help="Stands behind each document; by default the tokenizer's.")
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option("--special-tokens", help="What the tokenizer's template puts around a text."),
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens of each file.")] = 100_000_000,
    force: Annotated[
        bool, typer.Option("--force", help="Remove what an earlier run has made there.")
    ] = False,
) -> None:
    """Turn texts into shards of tokens, which language models are trained on.

    The same bytes with any number of workers. Run again after a kill, it goes on.
    """
    from ..data.pool import Interrupted
    from ..data.tokenize.command import Request
    from ..data.tokenize.command import tokenize as start

    words = tuple(sources), to, tokenizer, field, end_token, workers, shard_tokens, force
    try:
        start(Request(*words, special_tokens))
    except Interrupted as error:
        raise typer.Exit(128 + error.number) from None
