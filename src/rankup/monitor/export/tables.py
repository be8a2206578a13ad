"""CSV and Parquet: every sample, one row for each time and thing, as data frames are made of.

`gpus` has a row per time, node and GPU; `nodes`, `ranks` and `file_systems` likewise; `steps` has
one per training step. Times are UTC. Samples are read and written in streams.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from ...base.files import replacing
from .. import lines, samples
from ..load import SLACK
from ..recording import Recording, Steps
from . import channels, of_steps

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
    # As `load` believes it: what lies elsewhere has a time that cannot be.
    begin = recording.begin - SLACK
    end = recording.begin + recording.bins * recording.width + SLACK
    with ExitStack() as stack:
        sinks = {name: _Sink(target / f"{name}.{form}", form, stack) for name in (*_KINDS, "steps")}
        for journal in samples.nodes(directory):
            for name, kind in _KINDS.items():
                # What a file lacks, the recording's events say.
                with suppress(samples.TornError, OSError):
                    rows, *_ = samples.table(journal, kind)
                    t = rows.column("t").to_numpy()
                    good = rows.filter(pa.array((t >= begin) & (t <= end)))
                    sinks[name].add(_table(journal, kind, good))
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


_KINDS = {"gpus": "gpu", "nodes": "host", "ranks": "rank", "file_systems": "fs"}


def _table(journal: Path, kind: str, rows: pa.Table) -> pa.Table:
    """The rows of a node's kind, by the names that other programs have for them."""
    t = rows.column("t").to_numpy()
    columns = {
        "time": _times(t),
        "sample_seconds": rows.column("dt"),
        "node": _names([samples.node_name(journal)], np.zeros(len(rows), np.int64)),
    }
    if kind == "fs":
        columns["mount"] = rows.column("mount").cast(_NAME)
    elif kind != "host":
        columns[kind] = rows.column(kind).cast(pa.int32())
    if kind == "gpu":
        heads = samples.journal(journal).heads
        gpus, place = samples.gpus(heads, t, rows.column("gpu").to_numpy())
        columns["uuid"] = _names([*(gpu.uuid for gpu in gpus), ""], place % (len(gpus) + 1))
    outside = channels(kind)
    columns |= {outside[name].name: rows.column(name) for name in lines.COLUMNS[kind]}
    found = pa.table(columns)
    if kind == "fs":  # one that never says anything has an empty row
        values = [rows.column(name).to_numpy() for name in lines.FS]
        found = found.filter(pa.array(~np.isnan(values).all(axis=0)))
    return found


def _steps(steps: Steps) -> pa.Table:
    columns = of_steps(steps)
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
