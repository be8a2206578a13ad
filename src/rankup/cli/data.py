"""Verbs of data: pack, inspect."""

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
        int | None, typer.Option(help="Encode images anew, the shorter side this many pixels.")
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
    """Turn a million small files into a few, in a standard format.

    With `srun -n N rankup pack ...` all tasks of the step share the work.
    """
    from ..data.pack.command import pack as start
    from ..data.pack.request import Request

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
        bool, typer.Option("--verify", help="Compare every byte with its hash.")
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
    from ..login.doctor import quotas

    return quotas.lines(path)
