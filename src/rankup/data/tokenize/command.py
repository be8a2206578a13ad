"""`rankup tokenize`: documents become shards of tokens, the same whatever the number of workers.

One process reads and writes; workers encode. A shard is renamed to its name once it is on disk, and
then noted in `progress.jsonl` with the place behind it, from which a run that was killed goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ...base import lock
from ...base.amounts import duration, number, some, words
from ...base.errors import RunFailed, UserError
from ...base.files import fsync_directory, no_space, user_path, write_atomic, write_json
from ...base.progress import shown
from ...base.text import say
from ..errors import BadContainer
from ..pool import Interrupted, cores, interruptible, spread
from . import folder as made
from . import sources as text
from .encode import Encoded, Frame, encode, end_of, frame_of, opened
from .folder import ABOUT, TOKENIZER, Shard, TokenFolder
from .sources import Block, Source

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHARD_TOKENS = 100_000_000
_PROGRESS = "progress.jsonl"


@dataclass(frozen=True)
class Request:
    """The words of the command line."""

    sources: tuple[str, ...]
    to: str
    tokenizer: str
    field: str = "text"
    end_token: str | None = None
    workers: int | None = None
    shard_tokens: int = SHARD_TOKENS
    force: bool = False
    special_tokens: bool = False


def tokenize(request: Request) -> TokenFolder:
    """Make the folder, or go on with it.

    Raises:
        UserError: something that was given cannot be used; says what.
        Interrupted: by a signal; what is done is kept.
        RunFailed: another process makes the folder, a worker was killed, or there is no space.
    """
    if request.workers is not None and request.workers < 1:
        raise UserError(f"--workers {request.workers} does nothing; give 1 or more")
    if request.shard_tokens < 1000:
        raise UserError(
            f"--shard-tokens {request.shard_tokens} makes files of a few bytes; give 1000 or more"
        )
    folder = Path(os.path.abspath(user_path(request.to, "--to")))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {folder} is a file; name a folder")
    file = user_path(request.tokenizer, "--tokenizer")
    tokenizer, data = opened(file)
    end = end_of(tokenizer, request.end_token, file)
    frame = frame_of(tokenizer, end, file) if request.special_tokens else None
    sources, others = text.find(list(request.sources))
    text.check(sources, request.field)
    if others:
        say(
            f"{words(len(others), 'file is', 'files are')} of no kind that is known: {some(others)}"
        )
    size_of = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    identity = {
        "format": made.FORMAT,
        "dtype": "uint16" if size_of <= 1 << 16 else "uint32",
        "vocab_size": size_of,
        "end_token": tokenizer.id_to_token(end),
        "end": end,
        "frame": None if frame is None else [*frame],
        "tokenizer": hashlib.sha256(data).hexdigest(),
        "source": text.fingerprint(sources),
        "field": request.field,
        "shard_tokens": request.shard_tokens,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        lock.held(folder, say, doing="working on", wait=False) as held,
        interruptible() as watch,
    ):
        shards, places = _begun(folder, identity, request.force)
        if (folder / ABOUT).is_file():
            found = made.read(folder)
            (folder / _PROGRESS).unlink(missing_ok=True)  # it was killed in between
            say(f"{folder} is complete already: {_counts(found)}")
            return found
        writer = _Writer(folder, identity, shards, held.check)
        if shards:
            say(f"going on in {folder} behind {words(len(shards), 'shard', 'shards')}")
        started = time.monotonic()
        before = writer.tokens
        try:
            _begin(folder, identity, data, shards, places)
            place = [[0, 0, 0], *places][-1]
            _write(sources, request, tokenizer, end, frame or ([], []), writer, place, watch)
            _require_same(sources)
            found = _finish(folder, identity, writer)
        except Interrupted:
            kept = words(len(writer.shards), "shard is", "shards are")
            say(f"stopped: {kept} kept in {folder}; the same command goes on behind them")
            raise
        except OSError as error:
            if not no_space(error):
                raise
            raise RunFailed(
                f"no space is left for {folder} ({error.strerror}); "
                f"{words(len(writer.shards), 'shard', 'shards')} are kept: make room, and run the "
                "same command again"
            ) from None
        finally:
            writer.close()
    seconds = time.monotonic() - started
    speed = (found.tokens - before) / seconds
    say(f"done: {folder}: {_counts(found)}, in {duration(seconds)} ({number(speed)} tokens/s)")
    if writer.empty:
        say(f"{words(writer.empty, 'row has', 'rows have')} no text, and made no document")
    say(f"next: rankup run language-model --train {request.to}")
    return found


def _counts(found: TokenFolder) -> str:
    return (
        f"{words(found.tokens, 'token', 'tokens')} of "
        f"{words(found.documents, 'document', 'documents')} in "
        f"{words(len(found.shards), 'shard', 'shards')}"
    )


def _begun(
    folder: Path, identity: dict[str, Any], force: bool
) -> tuple[list[Shard], list[list[int]]]:
    """Return the shards that are there, and the place behind each: file, block, tokens of it.

    Raises:
        UserError: something else is in the folder.
    """
    if force:
        _clear(folder)
    if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
        return [], []
    lines = _noted(folder)
    if not made.is_one(folder):
        names = sorted(path.name for path in folder.iterdir())
        raise UserError(
            f"--to {folder} holds other files ({some(names)}); name a new folder, or an empty one"
        )
    try:
        there = json.loads((folder / ABOUT).read_bytes()) if not lines else lines[0]
    except (OSError, ValueError) as error:
        raise _damaged(folder / ABOUT, error) from None
    changed = [name for name, value in identity.items() if there.get(name) != value]
    if changed and len(lines) == 1:  # a first try that wrote no shard, as without the right --field
        _clear(folder)
        return [], []
    if changed:
        what = ", ".join(_CHANGED.get(name, name) for name in changed)
        raise UserError(
            f"--to {folder} was begun otherwise: {what} changed since; give it as it was, name "
            "another folder, or start anew by --force"
        )
    shards: list[Shard] = []
    places: list[list[int]] = []
    width = np.dtype(identity["dtype"]).itemsize
    for line in lines[1:]:
        try:
            shard, (file, block, skip) = Shard(**line["shard"]), line["next"]
            place = [int(file), int(block), int(skip)]
            path = folder / f"tokens-{len(shards):05}.bin"
            if path.name != shard.file or min(place) < 0:
                raise ValueError(f"shard {shard.file!r:.40}")
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder / _PROGRESS, error) from None
        if not path.is_file() or path.stat().st_size != shard.tokens * width:
            break  # it was removed: what follows it is made anew
        shards.append(shard)
        places.append(place)
    return shards, places


def _damaged(path: Path, error: Exception) -> BadContainer:
    return BadContainer(f"{path} is damaged ({error!r:.200}); start anew by --force")


_CHANGED = {
    "source": "the sources (names, sizes or times of files)",
    "tokenizer": "the tokenizer",
    "end": "the end token",
    "end_token": "its name",
    "frame": "--special-tokens",
    "field": "--field",
    "shard_tokens": "--shard-tokens",
}


def _noted(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run that has not come to its end; one that was cut off is left out."""
    try:
        lines = (folder / _PROGRESS).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    try:
        found = [json.loads(line) for line in lines]
        if not all(isinstance(line, dict) for line in found):
            raise ValueError("a line is no object")
    except (ValueError, RecursionError) as error:
        raise _damaged(folder / _PROGRESS, error) from None
    return found


def _clear(folder: Path) -> None:
    """Remove what this command has made; the marker first."""
    if not folder.is_dir():
        return
    names = [ABOUT, _PROGRESS, TOKENIZER]
    names += [path.name for path in folder.glob("tokens-*.bin*")]
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _begin(
    folder: Path,
    identity: dict[str, Any],
    tokenizer: bytes,
    shards: list[Shard],
    places: list[list[int]],
) -> None:
    """Write what a run that was killed goes on from."""
    folder.mkdir(exist_ok=True)
    noted = [_note(shard, place) for shard, place in zip(shards, places, strict=True)]
    write_atomic(folder / _PROGRESS, "".join([json.dumps(identity) + "\n", *noted]))
    write_atomic(folder / TOKENIZER, tokenizer)


def _note(shard: Shard, place: list[int]) -> str:
    return json.dumps({"shard": asdict(shard), "next": place}) + "\n"


class _Writer:
    """Writes tokens into shards of equal length.

    Args:
        shards: those that are there.
        check: raises where the folder is no longer ours.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        shards: list[Shard],
        check: Callable[[], None],
    ) -> None:
        self.shards, self.empty = shards, 0
        self.tokens = sum(shard.tokens for shard in shards)
        self._folder, self._check = folder, check
        self.dtype = np.dtype(identity["dtype"]).newbyteorder("<")
        self._most = int(identity["shard_tokens"])
        self._file: Any = None
        self._hash, self._here, self._documents = xxhash.xxh3_128(), 0, 0

    @property
    def _name(self) -> str:
        return f"tokens-{len(self.shards):05}.bin"

    def add(self, found: Encoded, block: Block, skip: int = 0) -> None:
        """Write the tokens of a block.

        Args:
            skip: how many of them are written already.
        """
        self.empty += found.empty
        at = skip
        while at < len(found.tokens):
            if self._file is None:
                self._check()
                self._file = (self._folder / f"{self._name}.part").open("wb")
            stop = min(len(found.tokens), at + self._most - self._here)
            data = found.tokens[at:stop].astype(self.dtype, copy=False).tobytes()
            self._file.write(data)
            self._hash.update(data)
            self._documents += int(((found.ends > at) & (found.ends <= stop)).sum())
            self._here += stop - at
            self.tokens += stop - at
            at = stop
            if self._here == self._most:
                self.end([block.file, block.number, at])

    def end(self, place: list[int]) -> None:
        """End the shard, and note the place behind it: file, block, tokens of that block."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._check()
        shard = Shard(self._name, self._here, self._documents, self._hash.hexdigest())
        (self._folder / f"{shard.file}.part").replace(self._folder / shard.file)
        fsync_directory(self._folder)
        with (self._folder / _PROGRESS).open("a") as file:
            file.write(_note(shard, place))
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(shard)
        self._file, self._hash = None, xxhash.xxh3_128()
        self._here = self._documents = 0

    def close(self) -> None:
        """Leave the shard that has not come to its end."""
        if self._file is not None:
            self._file.close()
            (self._folder / f"{self._name}.part").unlink(missing_ok=True)


def _write(
    sources: list[Source],
    request: Request,
    tokenizer: Tokenizer,
    end: int,
    frame: Frame,
    writer: _Writer,
    place: list[int],
    watch: Callable[[], None],
) -> None:
    """Encode all blocks from a place on, in worker processes, and write them in their order."""
    file, first, skip = place

    def work(block: Block) -> tuple[Block, Encoded]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores
        found = encode(tokenizer, block, sources[block.file], request.field, end, frame)
        tokens = found.tokens.astype(writer.dtype, copy=False)  # half as much to be sent
        return replace(block, rows=b""), replace(found, tokens=tokens)

    total = sum(source.size for source in sources[file:])
    parts = text.blocks(sources, request.field, (file, first))
    with shown("tokenizing", total) as show:
        read = 0
        workers = request.workers or cores()
        for block, found in spread(work, parts, workers, watch, ordered=True):
            writer.add(found, block, skip)
            skip, read = 0, read + block.read
            show(min(read, total), total)
    writer.end([len(sources), 0, 0])


def _require_same(sources: list[Source]) -> None:
    for source in sources:
        about = source.path.stat() if source.path.exists() else None
        if about is None or (about.st_size, about.st_mtime_ns) != (source.size, source.changed):
            raise UserError(
                f"{source.path} was changed while it was read; start anew by --force, once nobody "
                "writes to it"
            )


def _finish(folder: Path, identity: dict[str, Any], writer: _Writer) -> TokenFolder:
    """Write what says that the folder is complete."""
    if not writer.shards:
        _clear(folder)
        raise UserError("the sources hold no text at all; name files with some")
    shards = [asdict(shard) for shard in writer.shards]
    totals = {name: sum(one[name] for one in shards) for name in ("tokens", "documents")}
    write_json(folder / ABOUT, {**identity, **totals, "shards": shards})
    (folder / _PROGRESS).unlink()
    return made.read(folder)
