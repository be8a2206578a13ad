"""The folder that `rankup tokenize` makes: token shards, and what says that they are whole.

FOLDER/tokens-00000.bin, …   little-endian uint16 or uint32; all shards but the last are as long
       tokens.json           what is in them, and their hashes; written last
       tokenizer.json        of the package `tokenizers`, by which they were made

The shards one after another are the documents one after another, each with an end token behind it.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ...base.progress import Progress
from ...site.gpus import usable_cores
from ..errors import BadContainer

ABOUT, TOKENIZER = "tokens.json", "tokenizer.json"
FORMAT = "rankup.tokens.1"
_HASHED = 1 << 22  # bytes at a time


@dataclass(frozen=True)
class Shard:
    """One file of tokens.

    Attributes:
        hash: XXH3 of its bytes, 128 bits in hexadecimal digits.
        documents: whose end token is in it.
    """

    file: str
    tokens: int
    documents: int
    hash: str


@dataclass(frozen=True)
class TokenFolder:
    """A complete folder of token shards.

    Attributes:
        vocab_size: tokens that the tokenizer knows.
        end: number of the end token.
        tokenizer: sha256 of the tokenizer's file.
        source: hash of names, sizes and times of the files that the tokens were made of.
    """

    path: Path
    dtype: str
    vocab_size: int
    end: int
    tokenizer: str
    source: str
    shards: tuple[Shard, ...]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    def size_of(self, shard: Shard) -> int:
        """Return the bytes of a shard."""
        return shard.tokens * np.dtype(self.dtype).itemsize

    @property
    def identity(self) -> str:
        """The sha256 of what the tokens are: two folders of the same have the same tokens."""
        parts = [self.dtype, self.tokenizer, *(shard.hash for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_one(path: Path) -> bool:
    """Return True for a folder that `rankup tokenize` has made, or has begun to make."""
    return _about(path) is not None or (path / "progress.jsonl").is_file()


def _about(path: Path) -> dict[str, Any] | None:
    try:
        about = json.loads((path / ABOUT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return about if isinstance(about, dict) and "shards" in about else None


def read(path: Path, *, sizes: bool = True) -> TokenFolder:
    """Return what a folder holds; the sizes of its shards are compared, not their hashes.

    Args:
        sizes: False where thousands of ranks would ask the file system for each shard; then a
            shard is looked at when it is first touched.

    Raises:
        BadContainer: it is no complete folder of tokens.
    """
    about = _about(path)
    if about is None:
        raise BadContainer(
            f"{path} holds no complete {ABOUT} of `rankup tokenize`; run it to its end, or give "
            "another folder"
        )
    if about.get("format") != FORMAT:
        raise BadContainer(
            f"{path / ABOUT} is of the format {about.get('format')!r}, and {FORMAT!r} is read "
            "here; make the folder anew by `rankup tokenize`"
        )
    try:
        found = TokenFolder(
            path,
            str(about["dtype"]),
            int(about["vocab_size"]),
            int(about["end"]),
            str(about["tokenizer"]),
            str(about["source"]),
            tuple(
                Shard(str(one["file"]), int(one["tokens"]), int(one["documents"]), str(one["hash"]))
                for one in about["shards"]
            ),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadContainer(f"{path / ABOUT} is damaged ({error!r}); make it anew") from None
    if found.dtype not in ("uint16", "uint32") or not found.shards:
        raise BadContainer(f"{path / ABOUT} has shards of {found.dtype}, or none; make it anew")
    for shard in found.shards:
        if shard.tokens < 1 or Path(shard.file).name != shard.file:
            raise BadContainer(f"{path / ABOUT} is damaged (shard {shard.file!r}); make it anew")
        if sizes:
            _require_size(found, shard)
    return found


def _require_size(folder: TokenFolder, shard: Shard) -> None:
    file, size = folder.path / shard.file, folder.size_of(shard)
    there = file.stat().st_size if file.is_file() else None
    if there != size:
        raise BadContainer(
            f"{file} has {'no' if there is None else f'{there:,}'} bytes, and {size:,} belong "
            "there: it was cut short or replaced; copy it again, or make the folder anew by "
            "`rankup tokenize`"
        )


def compare(folder: TokenFolder, copy: Path, watch: Progress) -> None:
    """Compare the shards of a copy of a folder with their hashes, on all cores.

    Raises:
        BadContainer: one has another hash, and is named.
        OSError: it cannot be read.
    """

    def hashed(shard: Shard) -> str:
        found = xxhash.xxh3_128()
        with (copy / shard.file).open("rb") as file:
            while data := file.read(_HASHED):
                found.update(data)
        return found.hexdigest()

    done = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for shard, found in zip(folder.shards, pool.map(hashed, folder.shards), strict=True):
            if found != shard.hash:
                raise BadContainer(
                    f"{folder.path / shard.file} does not have the hash that {ABOUT} says: it was "
                    "damaged or replaced; copy it again, or make the folder anew by `rankup "
                    "tokenize`"
                )
            done += folder.size_of(shard)
            watch(done)


class Shards:
    """The tokens of a folder, or of a part of it, as one array of one axis.

    Shards are mapped when they are first touched.

    Args:
        start, stop: the part.
    """

    def __init__(self, folder: TokenFolder, start: int = 0, stop: int | None = None) -> None:
        self._folder = folder
        self._start = start
        self._stop = folder.tokens if stop is None else stop
        ends = np.cumsum([shard.tokens for shard in folder.shards])
        self._ends: npt.NDArray[np.int64] = ends.astype(np.int64)
        self.dtype = np.dtype(folder.dtype).newbyteorder("<")
        self._mapped: dict[int, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return self._stop - self._start

    def part(self, start: int, stop: int) -> Shards:
        """Return the tokens [start, stop) of these."""
        return Shards(self._folder, self._start + start, self._start + stop)

    def __getitem__(self, places: slice | npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the tokens at any places, of the same shape; negative ones are not understood."""
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            if step == 1:
                return self._run(self._start + start, self._start + max(start, stop))
            places = np.arange(start, stop, step)
        at = np.asarray(places, np.int64)
        if at.size and not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise IndexError(f"a place is outside of {len(self)} tokens")
        at = at + self._start
        number = np.searchsorted(self._ends, at, side="right")
        found = np.empty(at.shape, self.dtype)
        for one in np.unique(number).tolist():
            here = number == one
            first = self._ends[one] - self._folder.shards[one].tokens
            found[here] = self._shard(one)[at[here] - first]
        return found

    def _run(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the tokens [start, stop) of the folder."""
        found = np.empty(stop - start, self.dtype)
        number, place = int(np.searchsorted(self._ends, start, side="right")), start
        while place < stop:
            first = int(self._ends[number]) - self._folder.shards[number].tokens
            part = self._shard(number)[place - first : stop - first]
            found[place - start : place - start + len(part)] = part
            number, place = number + 1, place + len(part)
        return found

    def _shard(self, number: int) -> npt.NDArray[Any]:
        mapped = self._mapped.get(number)
        if mapped is None:
            _require_size(self._folder, self._folder.shards[number])
            file = self._folder.path / self._folder.shards[number].file
            mapped = np.memmap(file, self.dtype, mode="r")
            self._mapped[number] = mapped
        return mapped
