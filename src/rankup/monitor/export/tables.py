"""CSV and Parquet: every sample, one row for each time and thing, as data frames are made of.

`gpus` has a row per time, node and GPU; `nodes`, `ranks` and `file_systems` likewise; `steps` has
one per training step. Times are UTC. Samples are read and written in streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from ...base.files import replacing
from .. import lines, samples, survey
from ..channels import host_channels
from ..heads import Layout
from ..load import node_files
from ..recording import HOST, Recording, Steps
from ..samples import Batch
from . import units

_TIME = pa.timestamp("ms", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())
_ROWS = 1 << 16  # at least, of a group in Parquet


def write(recording: Recording, directory: Path, form: str, target: Path) -> list[Path]:
    """Write the tables into a folder; those that would be empty are left out.

    Args:
        form: `csv` or `parquet`.

    Raises:
        OSError: a file cannot be read or written.
    """
    files = node_files(directory)
    window = survey.window(recording.facts, [survey.look(file) for file in files])
    with ExitStack() as stack:
        sinks = {name: _Sink(target / f"{name}.{form}", form, stack) for name in (*_KINDS, "steps")}
        for batch, layout in _batches(files, window):
            for name, rows in _KINDS.items():
                if (table := rows(batch, layout)) is not None:
                    sinks[name].add(table)
        sinks["steps"].add(_steps(recording.steps))
        # Only now do files take the place of those that were there.
        return [path for sink in sinks.values() for path in sink.finish()]


class _Sink:
    """A table's file, which is made when there is a first row."""

    def __init__(self, path: Path, form: str, stack: ExitStack) -> None:
        self._path, self._form, self._stack = path, form, stack
        self._waiting: list[pa.Table] = []
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= _ROWS:
            self._flush()

    def finish(self) -> list[Path]:
        """The path, where there were rows; else a file of before goes, as it is not of this run."""
        if self._waiting:
            self._flush()
        if self._writer is None:
            self._path.unlink(missing_ok=True)
            return []
        self._writer.close()
        return [self._path]

    def _flush(self) -> None:
        table = _joined(self._waiting)
        self._waiting = []
        if self._writer is None:
            file = self._stack.enter_context(replacing(self._path))
            if self._form == "csv":
                self._writer = csv.CSVWriter(file, table.schema)
            else:
                self._writer = parquet.ParquetWriter(file, table.schema, compression="zstd")
        self._writer.write_table(table)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


Rows = Callable[[Batch, Layout], "pa.Table | None"]


def _batches(files: list[Path], window: tuple[float, float]) -> Iterator[tuple[Batch, Layout]]:
    """All samples whose times can be; what a file lacks, the recording's events say."""
    for file in files:
        layout = None
        with suppress(OSError):
            for part in samples.read(file):
                if isinstance(part, Layout):
                    layout = part
                elif isinstance(part, Batch) and layout is not None:
                    good = (part.t >= window[0]) & (part.t <= window[1])
                    yield part.only(good), layout


def _gpus(batch: Batch, layout: Layout) -> pa.Table:
    count = batch.gpu.shape[1]
    known = layout.head.gpus
    index = [known[at].index if at < len(known) else at for at in range(count)]
    uuid = [known[at].uuid if at < len(known) else "" for at in range(count)]
    columns = {
        "gpu": pa.array(np.tile(np.array(index, np.int32), len(batch.t))),
        "uuid": _names(uuid, np.tile(np.arange(count), len(batch.t))),
    }
    return _table(batch, layout, count, columns, batch.gpu, [units.GPU[n] for n in lines.GPU])


def _nodes(batch: Batch, layout: Layout) -> pa.Table:
    # With the busiest core and the file systems' sums, which are no columns of the samples.
    return _table(
        batch, layout, 1, {}, host_channels(batch)[:, None], [units.HOST[n] for n in HOST]
    )


def _ranks(batch: Batch, layout: Layout) -> pa.Table:
    count = batch.ranks.shape[1]
    number = batch.ranks[..., 0].ravel()
    valid = number < 1e6
    rank = pa.array(np.where(valid, number, 0).astype(np.int32), mask=~valid)
    names = [units.RANK[name] for name in lines.RANKS[1:]]
    table = _table(batch, layout, count, {"rank": rank}, batch.ranks[..., 1:], names)
    return table.filter(pa.array(valid))


def _file_systems(batch: Batch, layout: Layout) -> pa.Table | None:
    if not batch.fs:
        return None
    values = np.stack(list(batch.fs.values()), axis=1)
    mount = _names(list(batch.fs), np.tile(np.arange(len(batch.fs)), len(batch.t)))
    names = [units.FS[name] for name in lines.FS]
    table = _table(batch, layout, len(batch.fs), {"mount": mount}, values, names)
    return table.filter(pa.array(~np.isnan(values).all(axis=2).ravel()))


_KINDS: dict[str, Rows] = {
    "gpus": _gpus,
    "nodes": _nodes,
    "ranks": _ranks,
    "file_systems": _file_systems,
}


def _table(
    batch: Batch,
    layout: Layout,
    things: int,
    columns: dict[str, pa.Array],
    values: samples.Numbers,
    names: list[str],
) -> pa.Table:
    """Rows for each sample and thing; `values` (samples, things, columns)."""
    count = len(batch.t) * things
    flat = values.reshape(count, len(names))
    return pa.table(
        {
            "time": _times(np.repeat(batch.t, things)),
            "sample_seconds": _floats(np.repeat(batch.dt, things)),
            "node": _names([layout.head.node], np.zeros(count, np.int64)),
            **columns,
            **{name: _floats(flat[:, at]) for at, name in enumerate(names)},
        }
    )


def _steps(steps: Steps) -> pa.Table:
    valid = dict(steps.valid.tolist())
    losses = np.array([valid.get(float(step), np.nan) for step in steps.step])
    columns = {
        "loss": steps.loss,
        "step_seconds": steps.seconds,
        f"{steps.unit or 'units'}_per_s": steps.rate,
        "data_wait_share": steps.data_wait,
        "mfu": steps.mfu,
        "valid_loss": losses,
    }
    # What a script logs may have any name, one of ours too; it is kept beside it.
    taken = {"time", "step", *columns}
    for name, values in steps.extra.items():
        while name in taken:
            name += "_"
        taken.add(name)
        columns[name] = values
    said = {name: array for name, array in columns.items() if not np.isnan(array).all()}
    return pa.table(
        {
            "time": _times(steps.time),
            "step": pa.array(steps.step),
            **{name: _floats(array) for name, array in said.items()},
        }
    )


def _times(t: samples.Numbers) -> pa.Array:
    return pa.array(np.rint(t * 1000).astype(np.int64)).cast(pa.timestamp("ms")).cast(_TIME)


def _floats(values: samples.Numbers) -> pa.Array:
    """NaN as null: it was not said."""
    return pa.array(np.ascontiguousarray(values, np.float64), from_pandas=True)


def _names(names: list[str], at: Any) -> pa.Array:
    texts = pa.array([name.encode(errors="replace").decode() for name in names], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int32)), texts)
