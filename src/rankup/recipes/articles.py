"""Articles and their summaries as memory-mapped tokens, made once before the job starts. No torch.

articles/{train,valid,test}-source.npy   tokens of the articles one after another
                           -target.npy   tokens of the summaries
                           -ends.npy     int64 (n, 2): where each article and summary ends
                           -summaries.json   the summaries as they were written
         tokenizer.json                  of the `tokenizers` library
         articles.json                   all else; written last
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from ..base.files import open_regular, replacing, write_json
from ..base.text import clean
from .vocabulary import Pieces, Tokens

SPLITS = ("train", "valid", "test")
_HELD_OUT = 0.1  # of the training articles without valid or test ones, for each of them
_AT_ONCE = 1000


class Article(NamedTuple):
    document: str
    summary: str


@dataclass(frozen=True)
class Split:
    """The articles of a part, mapped and read when touched.

    Attributes:
        lengths: int64 (n, 2), tokens of each article and of its summary, their ends included.
    """

    sources: Tokens
    targets: Tokens
    ends: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def source(self, row: int) -> Tokens:
        return self.sources[self.ends[row, 0] - self.lengths[row, 0] : self.ends[row, 0]]

    def target(self, row: int) -> Tokens:
        return self.targets[self.ends[row, 1] - self.lengths[row, 1] : self.ends[row, 1]]


def read(path: Path, option: str) -> Iterator[Article]:
    """The articles of a file of JSON lines, each with `document` and `summary`.

    Raises:
        UserError: the file or a line of it is something else; says which line.
    """
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _article(line, f"{option} {path}, line {number}")
    except OSError as error:
        why = (
            "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        )
        raise UserError(f"{option} {path} {why}; give a file of JSON lines") from None


def _article(line: bytes, where: str) -> Article:
    try:
        found = json.loads(line)
        document, summary = found["document"], found["summary"]
        if isinstance(document, str) and isinstance(summary, str):
            document.encode(), summary.encode()  # half a surrogate pair is no text
            return Article(document, summary)
        why = "they are no texts"
    except (ValueError, RecursionError) as error:
        why = f"it is no JSON ({clean(str(error))[:100]})"
    except (KeyError, TypeError, IndexError):
        why = "it has not both"
    raise UserError(f'{where}: {why}; each line is an article, {{"document": "…", "summary": "…"}}')


def of_arrow(folder: Path, split: str) -> Iterator[Article]:
    """The articles of a data set that `datasets` keeps in a folder, without that library.

    Raises:
        UserError: there is no such split, or no text in it.
    """
    import pyarrow as pa

    files = sorted({*folder.glob(f"*-{split}.arrow"), *folder.glob(f"*-{split}-*-of-*.arrow")})
    if not files:
        raise UserError(f"{folder} has no {split} split; fetch the data set anew")
    try:
        for path in files:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as batches:
                for batch in batches:
                    rows = (batch.column(name).to_pylist() for name in Article._fields)
                    yield from map(Article, *rows)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise UserError(f"{folder} holds no articles with summaries ({error})") from None


def python_topics() -> list[Article]:
    """Articles that every Python has: its help topics, each with its headline as the summary."""
    from pydoc_data.topics import topics

    found = []
    for name in sorted(topics):
        headline, _, text = topics[name].strip().partition("\n")
        if headline.strip() and (text := text.strip("*=-\n ")):
            found.append(Article(" ".join(text.split()), headline.strip()))
    return found


def splits(
    given: Mapping[str, Iterable[Article] | None], most: Mapping[str, int | None]
) -> dict[str, list[Article]]:
    """The three parts; what is not given is held out from the end of the training articles.

    Args:
        most: of each part, so many of its first articles.

    Raises:
        UserError: a part has none.
    """
    held = [name for name in SPLITS[1:] if given[name] is None]
    found = {
        name: list(islice((a for a in part if a.document.strip() and a.summary.strip()), n))
        for name, part in given.items()
        if part is not None
        # What is held out lies behind all that is left.
        for n in [None if name == "train" and held else most[name]]
    }
    train = found["train"]
    size, part_size = len(train), int(len(train) * _HELD_OUT)
    for name in reversed(held):
        train, found[name] = train[: len(train) - part_size], train[len(train) - part_size :]
    found["train"] = train
    for name in SPLITS:
        if not found[name]:
            raise UserError(
                f"no {name} article has both a text and a summary"
                if name not in held
                else f"a tenth of the training articles would be for --{name}, and there are "
                f"{size} with a text and a summary; give more, or a --{name} file"
            )
    return {name: found[name][: most[name]] for name in SPLITS}


def encode(
    parts: Mapping[str, Sequence[Article]],
    tokenizer: Pieces,
    directory: Path,
    about: Mapping[str, Any],
) -> None:
    """Make `directory`: tokens cut to the first `source_len` and `target_len`, an end behind each.

    Args:
        about: what `articles.json` will hold: `vocab_size`, `end` (a token), `prefix` (a text in
            front of each article), `source_len`, `target_len`, and whatever else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    kind = np.uint16 if about["vocab_size"] <= 1 << 16 else np.uint32
    for name, articles in parts.items():
        texts = {
            "source": [about["prefix"] + article.document for article in articles],
            "target": [article.summary for article in articles],
        }
        columns = []
        for part, column in texts.items():
            most = about[f"{part}_len"] - 1
            tokens = [
                np.array([*ids[:most], about["end"]], kind)
                for start in range(0, len(column), _AT_ONCE)
                for ids in tokenizer.encode_many(column[start : start + _AT_ONCE])
            ]
            _save(directory / f"{name}-{part}.npy", np.concatenate(tokens))
            columns.append([len(one) for one in tokens])
        lengths = np.array(columns, np.int64).T
        _save(directory / f"{name}-ends.npy", lengths.cumsum(axis=0))
        if name != "train":
            write_json(directory / f"{name}-summaries.json", [a.summary for a in articles])
    tokenizer.write(directory)
    write_json(directory / "articles.json", dict(about))


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with replacing(path) as file:
        np.save(file, array)


def about(directory: Path) -> dict[str, Any]:
    """Return `about` of `encode`.

    Raises:
        UserError: it has not come to its end there.
    """
    try:
        found: dict[str, Any] = json.loads((directory / "articles.json").read_text())
        return found
    except (OSError, ValueError) as error:
        raise UserError(f"{directory} holds no articles ({error}); start the run anew") from None


def open_split(directory: Path, name: str) -> Split:
    """Map a part of what `encode` made.

    Raises:
        UserError: it is not whole.
    """
    try:
        sources, targets, ends = (
            np.load(directory / f"{name}-{part}.npy", mmap_mode="r")
            for part in ("source", "target", "ends")
        )
        if ends.shape[1:] != (2,) or ends[-1].tolist() != [len(sources), len(targets)]:
            raise ValueError("its parts do not fit together")
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise UserError(
            f"{directory} holds no {name} articles ({error}); start the run anew"
        ) from None
    return Split(sources, targets, ends, np.diff(ends, axis=0, prepend=0))


def summaries(directory: Path, name: str) -> list[str]:
    """The summaries of a part as they were written."""
    found: list[str] = json.loads((directory / f"{name}-summaries.json").read_text())
    return found
