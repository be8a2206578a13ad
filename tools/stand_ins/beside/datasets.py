"""Stands in for datasets, beside a script: see tools/stand_ins/README.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Columns = dict[str, list[Any]]


class Dataset:
    """Columns of equal length."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))


class DatasetDict(dict[str, Dataset]):
    """Parts by name."""

    def map(
        self,
        function: Callable[[Columns], Columns],
        batched: bool = False,
        remove_columns: Sequence[str] = (),
        **_: Any,
    ) -> DatasetDict:
        """Every part given to a function as a whole."""
        return DatasetDict({name: Dataset(function(part.columns)) for name, part in self.items()})


def load_dataset(path: str, name: str = "", **_: Any) -> DatasetDict | Dataset:
    """The lines of the files of a folder; with a name like "en-it" the pairs of one file."""
    if name:
        languages = name.split("-")
        lines = Path(path, f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        pairs = [dict(zip(languages, line.split("\t"), strict=True)) for line in lines]
        return Dataset({"translation": pairs})
    files = sorted(Path(path).glob("*.txt"))
    parts = {file.stem: file.read_text(encoding="utf-8").splitlines() for file in files}
    return DatasetDict({name: Dataset({"text": lines}) for name, lines in parts.items()})
