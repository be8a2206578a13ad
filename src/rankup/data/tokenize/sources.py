"""The documents of text files, JSON lines, Parquet and Arrow, a block at a time and in order.

A block is what one worker encodes at once. Where a file is cut into blocks follows from its bytes
alone, so that a run that goes on finds the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import xxhash

from ...base.amounts import some
from ...base.errors import UserError, nearest
from ...base.files import user_path

Kind = Literal["text", "lines", "parquet", "arrow"]

# Bytes that are encoded at once: an encoding is some fifty times as large. A text file that is
# longer is cut at ends of lines.
_BLOCK = 1 << 20
_LINE = 1 << 30  # of one line of JSON at most
_KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """A file of documents.

    Attributes:
        name: relative to what the user has named.
        compression: of pyarrow; None: as it is.
    """

    path: Path
    name: str
    kind: Kind
    compression: str | None
    size: int
    changed: int  # nanoseconds


@dataclass(frozen=True)
class Block:
    """Some documents, or a piece of one.

    Attributes:
        file, number: which file it is of, and which of its blocks.
        rows: texts, None for a row that has none; lines of JSON as bytes; or a piece of a text.
        last: False for a piece of a text of which more follows.
        first: number of the first row or line, from 1.
        read: bytes of the file that were read with it.
    """

    file: int
    number: int
    rows: bytes | list[str | None]
    last: bool
    first: int
    read: int


def find(given: list[str]) -> tuple[list[Source], list[str]]:
    """Return the files in the order of their documents, and the names of those left out.

    Files of a folder are sorted by path; hidden ones are not looked at.

    Raises:
        UserError: nothing is there, it is no text that is known, or it is named twice.
    """
    found: list[Source] = []
    others: list[str] = []
    for text in given:
        path = user_path(text, "SOURCE")
        if path.is_dir():
            files = list(_walk(path))
            # A link to nowhere has no text, and a pipe would be waited for.
            ours = [file for file in files if _kind(file)[0] is not None and file.is_file()]
            found += [_source(file, str(file.relative_to(path))) for file in ours]
            others += sorted({*map(str, files)} - {*map(str, ours)})
            if not ours:
                raise UserError(
                    f"SOURCE {path} holds no file that is known ({', '.join(_KINDS)}; the first "
                    f"five also with .gz or .zst){_seen(files)}; name files, or another folder"
                )
        elif path.is_file():
            if path.suffix == ".json":
                raise UserError(
                    f"SOURCE {path}: one JSON document is no text; give JSON lines, one object "
                    "with a text per line, named .jsonl"
                )
            found.append(_source(path, path.name))
        else:
            what = "is no file or folder" if path.exists() else "does not exist"
            raise UserError(f"SOURCE {path} {what}; give text, .jsonl, .parquet or .arrow files")
    seen: set[str] = set()
    for source in found:
        real = os.path.realpath(source.path)
        if real in seen:
            raise UserError(
                f"{source.path} is named twice, and its documents would be there twice; name it "
                "once"
            )
        seen.add(real)
    return found, others


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here, name) for name in sorted(files) if not name.startswith("."))


def _seen(files: list[Path]) -> str:
    return f": {some([file.name for file in files])}" if files else ", it is empty"


def _kind(path: Path) -> tuple[Kind | None, str | None]:
    compression = _COMPRESSED.get(path.suffix)
    inner = Path(path.stem) if compression else path
    kind = _KINDS.get(inner.suffix)
    if compression and kind not in ("text", "lines"):
        return None, None
    return kind, compression


def _source(path: Path, name: str) -> Source:
    kind, compression = _kind(path)
    about = path.stat()
    if not os.access(path, os.R_OK):
        raise UserError(f"SOURCE {path}: no permission to read it")
    return Source(path, name, kind or "text", compression, about.st_size, about.st_mtime_ns)


def fingerprint(sources: list[Source]) -> str:
    """Return a hash of names, sizes and times of files."""
    parts = [f"{one.name}\0{one.size}\0{one.changed}" for one in sources]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode(errors="surrogateescape"))


def check(sources: list[Source], field: str) -> None:
    """Open all tables, before hours have gone into those in front of a bad one.

    Raises:
        UserError: one is damaged, or has no texts in that column.
    """
    for source in sources:
        if source.kind in ("parquet", "arrow"):
            with _reading(source):
                _require_texts(source, _schema(source), field)


def blocks(sources: list[Source], field: str, start: tuple[int, int] = (0, 0)) -> Iterator[Block]:
    """Yield the blocks of all files from one on.

    Args:
        field: the column of tables that holds the text.
        start: file and block.

    Raises:
        UserError: a file is damaged.
    """
    for file in range(start[0], len(sources)):
        source = sources[file]
        found = _ROWS[source.kind](source, field)
        for number, (rows, last, first, read) in enumerate(found):
            if (file, number) >= start:
                yield Block(file, number, rows, last, first, read)


_Rows = Iterator[tuple[bytes | list[str | None], bool, int, int]]


class _reading:  # noqa: N801 - a context, used as a function
    """Turn what goes wrong while a file is read into a UserError that names it."""

    def __init__(self, source: Source) -> None:
        self.source, self.where = source, ""

    def __enter__(self) -> _reading:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        damaged = isinstance(error, (OSError, EOFError, pa.ArrowException, UnicodeDecodeError))
        if error is not None and damaged:
            what = {"parquet": "Parquet", "arrow": "Arrow"}.get(self.source.kind, "text")
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.source.path} cannot be read as {what}{self.where}: {reason}; it is "
                "damaged or was cut short: copy it again, or leave it away"
            ) from None


def _stream(source: Source) -> tuple[BinaryIO, Callable[[], int]]:
    """Return the bytes of a file without compression, and what says how far it was read."""
    file = source.path.open("rb")
    if source.compression is None:
        return file, file.tell
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), source.compression), file.tell


def _read(stream: BinaryIO, size: int) -> bytes:
    """Return so many bytes, fewer only at the end."""
    parts, left = [], size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _text(source: Source, field: str) -> _Rows:
    with _reading(source):
        stream, place = _stream(source)
        with stream:
            data = _read(stream, len(_BOM)).removeprefix(_BOM)
            before = 0
            while True:
                data += _read(stream, _BLOCK + 1 - len(data))
                at, last = place(), len(data) <= _BLOCK
                cut = len(data) if last else _cut(data)
                if data:
                    yield data[:cut], last, 1, at - before
                if last:
                    return
                data, before = data[cut:], at


def _cut(data: bytes) -> int:
    """Return where a piece of a text ends: behind a line, else in front of a space."""
    for cut in (data.rfind(b"\n", 0, _BLOCK) + 1, data.rfind(b" ", 0, _BLOCK)):
        if cut > 0:
            return cut
    cut = _BLOCK
    while cut > _BLOCK - 4 and data[cut] & 0xC0 == 0x80:  # inside a character
        cut -= 1
    return cut


def _lines(source: Source, field: str) -> _Rows:
    with _reading(source):
        stream, place = _stream(source)
        with stream:
            parts = [_read(stream, len(_BOM)).removeprefix(_BOM)]
            number, before, length = 1, 0, 0
            while part := _read(stream, _BLOCK):
                cut = part.rfind(b"\n") + 1
                length = length + len(part) if not cut else len(part) - cut
                if length > _LINE:
                    raise UserError(
                        f"{source.path}, line {number}: longer than {_LINE >> 30} GiB; JSON lines "
                        "are one object each"
                    )
                if cut:
                    rows, at = b"".join([*parts, part[:cut]]), place()
                    yield rows, True, number, at - before
                    number, before, parts = number + rows.count(b"\n"), at, []
                parts.append(part[cut:])
            if rest := b"".join(parts):
                yield rest, True, number, place() - before


def _schema(source: Source) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.kind == "parquet":
        return pq.read_schema(source.path)
    with pa.memory_map(str(source.path)) as file:
        return _arrow(file).schema


def _arrow(file: Any) -> Any:
    """Return the reader of an Arrow file, or of a stream such as `datasets` writes."""
    import pyarrow as pa

    if file.read(6) == b"ARROW1":
        return pa.ipc.open_file(file)
    file.seek(0)
    return pa.ipc.open_stream(file)


def _require_texts(source: Source, schema: Any, field: str) -> tuple[str, ...]:
    """The path of the texts in a table: a column, or the fields of structures to them, `a.b`."""
    import pyarrow as pa

    names = (field,) if field in schema.names else tuple(field.split("."))
    known, kind = schema.names, schema
    for name in names:
        if name not in known:
            raise UserError(
                f"{source.path} has no column {field!r} ({nearest(name, known)}); "
                "name that of the texts by --field"
            )
        kind = kind.field(name).type
        known = [part.name for part in kind.fields] if pa.types.is_struct(kind) else []
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(one(inner) for one in strings):
        raise UserError(
            f"{source.path}: column {field!r} is {kind}, and texts are needed; name another "
            "column by --field"
        )
    return names


def _inside(array: Any, names: tuple[str, ...]) -> Any:
    """What a path leads to in a column: a row of which a part is null has no text."""
    import pyarrow.compute as pc

    return pc.struct_field(array, list(names[1:])) if names[1:] else array


def _parquet(source: Source, field: str) -> _Rows:
    import pyarrow.parquet as pq

    def arrays(reading: _reading) -> Iterator[tuple[Any, float]]:
        with pq.ParquetFile(source.path, pre_buffer=False) as file:
            names = _require_texts(source, file.schema_arrow, field)
            for group in range(file.num_row_groups):
                reading.where = f", row group {group}"
                share = (
                    source.size
                    / file.num_row_groups
                    / max(1, file.metadata.row_group(group).num_rows)
                )
                for batch in file.iter_batches(1024, row_groups=[group], columns=[".".join(names)]):
                    # A column `a.b` and a part of a structure are both of this path.
                    at = batch.schema.get_field_index(names[0])
                    yield _inside(batch.column(at), names), share * len(batch)

    with _reading(source) as reading:
        yield from _packed(arrays(reading))


def _batches(source: Source, field: str) -> _Rows:
    import pyarrow as pa

    def arrays(reading: _reading) -> Iterator[tuple[Any, float]]:
        with pa.memory_map(str(source.path)) as file:
            reader = _arrow(file)
            names = _require_texts(source, reader.schema, field)
            column = reader.schema.get_field_index(names[0])
            if isinstance(reader, pa.RecordBatchFileReader):
                found = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                found = iter(reader)
            before = 0
            for number, batch in enumerate(found):
                reading.where = f", batch {number}"
                batch.validate(full=True)
                at = file.tell()
                yield _inside(batch.column(column), names), at - before
                before = at

    with _reading(source) as reading:
        yield from _packed(arrays(reading))


def _packed(arrays: Iterable[tuple[Any, float]]) -> _Rows:
    """Yield the rows of a column, as many at a time as make a block."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows: list[str | None] = []
    size, read, first = 0, 0.0, 1
    for array, share in arrays:
        array = array.cast(pa.large_string())
        lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        behind = np.cumsum(lengths)
        read += share
        start = 0
        while start < len(array):
            done = int(behind[start - 1]) if start else 0
            stop = int(np.searchsorted(behind, done + _BLOCK - size, side="right"))
            stop = max(stop, start if rows else start + 1)
            rows += array[start:stop].to_pylist()
            size += (int(behind[stop - 1]) if stop else 0) - done
            start = stop
            if start < len(array) or size >= _BLOCK:
                yield rows, True, first, int(read)
                first, size, read, rows = first + len(rows), 0, 0.0, []
    if rows:
        yield rows, True, first, int(read)


_ROWS: dict[Kind, Callable[[Source, str], _Rows]] = {
    "text": _text,
    "lines": _lines,
    "parquet": _parquet,
    "arrow": _batches,
}
