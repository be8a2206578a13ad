"""A node's files as arrays: its journal, and the rows of each kind of sample.

The files are a sampler's own and read plainly. A torn last line, which a killed sampler leaves, is
dropped; a damaged row in the middle is left out and named, and the others hold.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.files import open_regular
from ..base.text import encodable
from . import lines
from .lines import Gpu, Head, number

Numbers = NDArray[np.float64]
_PEEK = 16 << 10  # bytes of a file's begin and of its end: some hundred rows
# What each character of `cores` stands for, in %; NaN: no such character.
_TENTHS = np.full(256, np.nan, np.float32)
_TENTHS[np.frombuffer(b"0123456789a", np.uint8)] = np.arange(11) * 10


_MOST = 1e30  # no value of ours comes near, and float32 holds it
# A field of a damaged file, once it is decoded: what is no UTF-8 is then U+FFFD.
_NUMBER = r"(?:[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan))?"
_KEY = r"\d{1,5}"
_TEXT = r'(?:[^",\r\0\ufffd]*|"(?:[^"\r\0\ufffd]|"")*")'


class TornError(ValueError):
    """A file of samples is damaged so that nothing of it can be read."""


@dataclass(frozen=True)
class Note:
    """What a sampler said in the job's log."""

    t: float
    code: str
    text: str


@dataclass
class Journal:
    """The lines that a node's samplers have written beside their samples, in order.

    Attributes:
        ended: when the sampler of a head said its end, by place of the head.
        torn: last lines that were dropped.
        error: why it could not be read to its end.
    """

    heads: list[Head] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    torn: int = 0
    error: str = ""


@dataclass(frozen=True)
class Rows:
    """The rows of a kind, in the order of the file; NaN: not read.

    Attributes:
        t: unix seconds; dt: seconds that each stands for, NaN for a sampler's first.
        key: number of the GPU or rank, the mount point; None of `host`.
        values: (rows, columns of `lines.COLUMNS`).
        cores: text of each row of `host`, as Arrow has it.
        torn: last lines that were dropped, and damaged rows that were left out.
        damage: the latter in words.
    """

    t: Numbers
    dt: Numbers
    key: NDArray[Any] | None
    values: Numbers
    cores: Any = None
    torn: int = 0
    damage: str = ""

    def only(self, good: NDArray[np.bool_]) -> Rows:
        """Return those alone for which `good` (rows,) holds."""
        if good.all():
            return self
        key = None if self.key is None else self.key[good]
        cores = None if self.cores is None else self.cores.filter(good)
        return replace(
            self, t=self.t[good], dt=self.dt[good], key=key, values=self.values[good], cores=cores
        )


def nodes(directory: Path) -> list[Path]:
    """Return the journals of a run's samplers, by name; none where there is no such folder."""
    try:
        found = (directory / lines.FOLDER).iterdir()
        return sorted(path for path in found if path.suffix == lines.JOURNAL)
    except OSError:
        return []


def ends(path: Path) -> list[bytes]:
    """Return whole lines of a file's begin and of its end; none of one that cannot be read."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(_PEEK)
            if size > _PEEK:
                file.seek(max(_PEEK, size - _PEEK))
                # The first of these lines is torn, and is no line on its own.
                text = text.rpartition(b"\n")[0] + b"\n" + file.read(_PEEK).partition(b"\n")[2]
    except OSError:
        return []
    return text.split(b"\n")[:-1]


def node_name(journal: Path) -> str:
    """Return the name of the node, as its files are called."""
    return encodable(journal.stem)


def table_path(journal: Path, kind: str) -> Path:
    """Return the path of a node's table beside its journal."""
    return journal.with_name(journal.stem + lines.ending(kind))


def journal(path: Path) -> Journal:
    """Read a node's journal."""
    found = Journal()
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    found.torn += 1
                    continue
                try:
                    _take(found, json.loads(line), path)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    found.error = f"line {number} of {path.name} is damaged ({error}); delete it"
                    break
    except OSError as error:
        found.error = f"{path.name}: {error.strerror or error}"
    return found


def _take(found: Journal, record: dict[str, Any], path: Path) -> None:
    kind = record.get("kind")
    if kind == "head":
        found.heads.append(replace(Head.of(record), node=node_name(path)))
    elif kind == "note":
        text = encodable(record["text"])
        found.notes.append(Note(_time(record), record["code"], text))
    elif kind == "end":
        found.ended[len(found.heads) - 1] = _time(record)


def _time(record: dict[str, Any]) -> float:
    t = number(record["t"])
    if t is None:
        raise TypeError("its t is no time")
    return t


def rows(journal: Path, kind: str) -> Rows:
    """Read a table of a node; one that is not there has no rows.

    Raises:
        TornError: nothing of it can be read.
        OSError: it cannot be read.
    """
    return _rows(kind, *table(journal, kind))


def no_rows(kind: str) -> Rows:
    """Return a table without rows."""
    return _rows(kind, _schema(kind).empty_table())


def _rows(kind: str, found: Any, torn: int = 0, damage: str = "") -> Rows:
    names = lines.COLUMNS[kind]
    values = np.empty((len(found), len(names)))
    for at, name in enumerate(names):
        values[:, at] = _possible(found.column(name).to_numpy())
    return Rows(
        t=found.column("t").to_numpy(),
        dt=_possible(found.column("dt").to_numpy()),
        key=found.column(lines.KEYS[kind][0]).to_numpy() if lines.KEYS[kind] else None,
        values=values,
        cores=found.column("cores") if kind == "host" else None,
        torn=torn,
        damage=damage,
    )


def _possible(values: Numbers) -> Numbers:
    """Return them with NaN for what no node can show, infinity among it."""
    low, high = np.fmin.reduce(values, initial=0), np.fmax.reduce(values, initial=0)
    if -_MOST < low <= high < _MOST:  # as good as always
        return values
    return np.where(np.abs(values) < _MOST, values, np.nan)


def _schema(kind: str) -> Any:
    import pyarrow as pa  # a third of a second, for those alone who read samples

    types = {"gpu": pa.int64(), "rank": pa.int64(), "mount": pa.string(), "cores": pa.string()}
    known = {*lines.KEYS[kind], "cores"}
    return pa.schema(
        (name, types[name] if name in known else pa.float64()) for name in lines.header(kind)
    )


def table(journal: Path, kind: str) -> tuple[Any, int, str]:
    """Read a table of a node as Arrow has it, by our columns.

    Returns:
        It; how many lines it lost; and which of them are damaged, in words.

    Raises:
        TornError, OSError: see `rows`.
    """
    import pyarrow as pa

    path = table_path(journal, kind)
    try:
        with open_regular(path) as file:
            text = file.read()
    except FileNotFoundError:
        text = b""
    whole = text.rfind(b"\n") + 1
    torn = int(whole < len(text))
    if not whole:
        return _schema(kind).empty_table(), torn, ""
    plain = memoryview(text)[:whole]
    try:
        return _parsed(plain, kind), torn, ""
    except pa.ArrowInvalid:
        sound, bad = _sound(plain, kind)
    try:
        found = _parsed(sound, kind)
    except pa.ArrowInvalid as error:
        raise TornError(f"{path.name} is damaged ({error})") from None
    damage = f"row {bad[0]} of {path.name} is damaged" if bad else ""
    if len(bad) > 1:
        damage = f"{len(bad)} rows of {path.name} are damaged, the first is row {bad[0]}"
    return found, torn + len(bad), damage and f"{damage}; left out"


def _parsed(text: bytes | memoryview, kind: str) -> Any:
    """Return the table of whole rows and their header.

    Raises:
        pyarrow.ArrowInvalid: a row is damaged.
    """
    import pyarrow as pa
    from pyarrow import csv

    schema = _schema(kind)
    found = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(use_threads=False),
        convert_options=csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            include_missing_columns=True,  # of another version
            null_values=[""],
        ),
    )
    if len(found) and found.column("t").null_count == len(found):
        raise pa.ArrowInvalid("no column t, is its first row a header?")
    for key in lines.KEYS[kind]:
        if schema.field(key).type == pa.int64() and len(found):
            keys = found.column(key)
            if (
                keys.null_count
                or keys.to_numpy().min() < 0
                or keys.to_numpy().max() >= lines.MOST_KEYS
            ):
                raise pa.ArrowInvalid(f"the column {key} has a row without a number of its own")
    return found


def _sound(text: bytes | memoryview, kind: str) -> tuple[bytes, list[int]]:
    """Return the header and the rows that are whole, and the numbers of the others.

    A row at a time, which takes long: for a damaged file alone.
    """
    first, *rest = bytes(text).decode("utf-8", "replace").split("\n")
    numbers = {"t", "dt", *lines.COLUMNS[kind]}
    fields = [
        _NUMBER if name in numbers else _KEY if name in ("gpu", "rank") else _TEXT
        for name in first.split(",")
    ]
    row = re.compile(",".join(fields), re.ASCII | re.IGNORECASE)
    kept, bad = [first], []
    for at, line in enumerate(rest, 2):
        if row.fullmatch(line):
            kept.append(line)
        elif line:
            bad.append(at)
    return ("\n".join(kept) + "\n").encode(), bad


def gpus(
    heads: list[Head], t: Numbers, index: NDArray[np.int64]
) -> tuple[list[Gpu], NDArray[np.int64]]:
    """Return all GPUs of a node, newest head's first, and the place among them of each row.

    Args:
        t: of the rows, which says by which head they go.
        index: of their GPU, as NVML counts; -1 is the place of one that its head does not tell of.
    """
    found: list[Gpu] = []
    known = [gpu.index for head in heads for gpu in head.gpus]
    wide = max([int(index.max(initial=-1)), *known]) + 1
    places = np.full((max(1, len(heads)), wide), -1)  # by head and index
    for at, head in reversed(list(enumerate(heads))):  # the newest one knows best
        for gpu in head.gpus:
            if gpu.uuid not in [other.uuid for other in found]:
                found.append(gpu)
            places[at, gpu.index] = [other.uuid for other in found].index(gpu.uuid)
    return found, places[sampler(heads, t), index]


def sampler(heads: list[Head], t: Numbers) -> NDArray[np.int64]:
    """Return the place of the head that samples of these times go by."""
    begins = np.maximum.accumulate([head.t for head in heads]) if heads else np.zeros(1)
    return np.maximum(np.searchsorted(begins, t, side="right") - 1, 0)


def core_use(texts: Any) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float32]]]:
    """Yield the `cores` of rows that have equally many: which rows, and (rows, cores) use in %."""
    if not len(texts):
        return
    array = texts.combine_chunks()
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    wide = np.diff(edges)
    text = np.frombuffer(data or b"", np.uint8)
    for many in np.unique(wide[wide > 0]).tolist():
        of = wide == many
        yield of, _TENTHS[text[edges[:-1][of][:, None] + np.arange(many)]]
