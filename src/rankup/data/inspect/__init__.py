"""`rankup inspect`: what is in a container, whether it is sound, and its samples as files again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...base import progress
from ...base.amounts import size, words
from ...base.errors import EXIT_FAILED, UserError
from ...base.files import user_path
from .. import finding, opened
from ..errors import BadContainer
from ..index import Index, Split
from ..tokenize import folder as token_folder
from . import extract as extracting
from . import verify as verifying
from .printing import describe, lines, safe
from .verify import Damage

_NAMED = 20  # of what is damaged; all of it in the JSON


def show(
    path: str,
    *,
    verify: bool = False,
    extract: str | None = None,
    as_json: bool = False,
    samples: int = 3,
    split: str | None = None,
) -> int:
    """Print what a container holds; or check it, or write its samples as files.

    Args:
        path: the container.
        verify: compare the samples with the hashes that were written with them.
        extract: a new or empty folder for the files.
        as_json: print JSON.
        samples: how many of each split are shown.
        split: this one alone.

    Returns:
        The exit code: 1 where something is damaged.

    Raises:
        UserError: there is no container, none that is known, or no place for its files.
        OSError: the machine cannot read or write it.
    """
    if samples < 0:
        raise UserError(f"--samples is {samples}; it should be 0 or more")
    root = user_path(path, "FILE")
    out = None if extract is None else user_path(extract, "--extract")
    if token_folder.is_one(root):
        if out is not None or split is not None:
            raise UserError(f"{root} holds tokens, which have no splits, and no samples to extract")
        return _tokens(root, verify, as_json)
    told: dict[str, Any] = {}
    damaged: Sequence[Damage] = ()
    if verify:
        told["verify"], damaged = _verify(root, split, as_json)
    if out is not None and not damaged:
        told["extract"], damaged = _extract(root, split, out, as_json)
    if not told:
        with opened.open(root, staged=False) as found:
            about = describe(found, _splits(found.index, split), samples)
        about["path"] = str(root.absolute())  # not where a SquashFS of others is mounted
        print(json.dumps(about, indent=2) if as_json else "\n".join(map(safe, lines(about))))
    elif as_json:
        print(json.dumps({"path": str(root), **told}, indent=2))
    return EXIT_FAILED if damaged else 0


def _tokens(root: Path, verify: bool, as_json: bool) -> int:
    """Print what a folder of `rankup tokenize` holds, or compare its shards with their hashes."""
    folder = token_folder.read(root)
    total = sum(map(folder.size_of, folder.shards))
    about: dict[str, Any] = {
        "path": str(root.absolute()),
        "tokens": folder.tokens,
        "documents": folder.documents,
        "dtype": folder.dtype,
        "vocab_size": folder.vocab_size,
        "shards": len(folder.shards),
        "bytes": total,
    }
    what = f"{folder.tokens:,} tokens, {words(folder.documents, 'document', 'documents')}"
    damaged = ""
    if verify:
        try:
            with progress.shown("verifying", total, quiet=as_json) as watch:
                token_folder.compare(folder, root, watch)
        except BadContainer as error:
            damaged = str(error)
        about["verify"] = {"damaged": [asdict(Damage(str(root), damaged))] if damaged else []}
        line = f"{what}: each shard has the tokens that were written"
        _say(f"{root} is damaged: {damaged}" if damaged else f"{root} is sound: {line}", as_json)
    else:
        shards = words(len(folder.shards), "shard", "shards")
        _say(f"{root}: {what}, {folder.dtype}, {shards}, {size(total)}", as_json)
    if as_json:
        print(json.dumps(about, indent=2))
    return EXIT_FAILED if damaged else 0


def _splits(index: Index, name: str | None) -> tuple[Split, ...]:
    return index.splits if name is None else (index.split(name),)


def _verify(root: Path, split: str | None, quiet: bool) -> tuple[dict[str, Any], Sequence[Damage]]:
    try:
        own = finding.packed(root)  # also where its data is not what it says
        index, at = (own, root.absolute()) if own is not None else _opened(root)
    except BadContainer as error:
        damaged = verifying.index_damage(root)
        if not damaged:  # it is no pack of ours that is damaged, but data of others
            raise
        _name(damaged, quiet)
        _say(f"{root} is damaged: {error}", quiet)
        return {"damaged": [asdict(one) for one in damaged]}, damaged
    splits = _splits(index, split)
    with _progress("verifying", index, splits, quiet) as watch:
        done = verifying.verify(index, at, *_range(splits), watch)
    _name(done.damaged, quiet)
    what = f"{words(done.samples, 'sample', 'samples')}, {size(done.size)}"
    if done.damaged:
        _say(f"{root} is damaged: {len(done.damaged):,} of its parts, out of {what}", quiet)
    elif done.hashed:
        _say(f"{root} is sound: {what}: each has the bytes that were packed", quiet)
    else:
        _say(
            f"{root} can be read: {what}; there are no hashes to compare their bytes with "
            f"(what `rankup pack` writes has them)",
            quiet,
        )
    return asdict(done), done.damaged


def _extract(
    root: Path, split: str | None, out: Path, quiet: bool
) -> tuple[dict[str, Any], Sequence[Damage]]:
    index, at = _opened(root)
    splits = _splits(index, split)
    with _progress("extracting", index, splits, quiet) as watch:
        done = extracting.extract(index, at, splits, out, watch)
    _name(done.damaged, quiet)
    what = f"{words(done.samples, 'sample', 'samples')}, {size(done.size)}"
    if done.damaged:
        _say(
            f"{len(done.damaged):,} of {what} are damaged or could not be written; what "
            f"there is lies in {done.folder}",
            quiet,
        )
    else:
        _say(f"{what}, now in {done.folder}", quiet)
    return {**asdict(done), "folder": str(done.folder)}, done.damaged


def _opened(root: Path) -> tuple[Index, Path]:
    with opened.open(root, how="pread", staged=False) as samples:
        return samples.index, samples.root


def _range(splits: tuple[Split, ...]) -> tuple[int, int]:
    return (splits[0].start, splits[-1].stop) if splits else (0, 0)


def _progress(
    what: str, index: Index, splits: tuple[Split, ...], quiet: bool
) -> AbstractContextManager[progress.Progress]:
    """Return what shows how many samples of some splits are done."""
    start, stop = _range(splits)
    # As floats, which hold sums of what a damaged index says.
    lengths = (one.length[start:stop].clip(0) for one in index.fields)
    known = int(sum(float(one.sum(dtype=np.float64)) for one in lengths))
    return progress.shown(what, known, quiet=quiet)


def _name(damaged: Sequence[Damage], quiet: bool) -> None:
    for one in damaged[:_NAMED]:
        _say(f"{one.what}: {one.why}", quiet)
    if len(damaged) > _NAMED:
        _say(f"… and {len(damaged) - _NAMED} more (--json names all)", quiet)


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        print(safe(line), file=sys.stdout)
