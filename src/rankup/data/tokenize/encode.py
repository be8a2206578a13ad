"""Documents -> tokens by a file of the package `tokenizers`, with an end token behind each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError, nearest
from .folder import TOKENIZER
from .sources import Block, Source

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Names of the token that ends a text, in the order in which they are looked for: GPT-2's and
# Qwen's, Llama 3's, Llama 2's and T5's, Gemma's, DeepSeek's, and those that people give their own.
ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|eos|>",
    "[EOS]",
    "<EOS>",
    "<|end|>",
)
Frame = tuple[list[int], list[int]]
_BEFORE = "\n"  # a piece of a text begins behind a line
_AT_ONCE = 1 << 18  # characters that a worker encodes together: an encoding is large


@dataclass(frozen=True)
class Encoded:
    """The tokens of a block.

    Attributes:
        ends: how many tokens there are up to the end of each document that ends in it.
        empty: documents without a text.
    """

    tokens: npt.NDArray[Any]
    ends: npt.NDArray[np.int64]
    empty: int


def opened(path: Path) -> tuple[Tokenizer, bytes]:
    """Return a tokenizer, and the bytes of its file.

    Raises:
        UserError: it is none, or the package is not here.
    """
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "rankup tokenize needs the package tokenizers, which is not here; "
            "pip install tokenizers"
        ) from None
    if path.is_dir():
        path = path / TOKENIZER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"--tokenizer {path} cannot be read: {error.strerror}; give the {TOKENIZER} of a model"
        ) from None
    try:
        found = tokenizers.Tokenizer.from_buffer(data)
        known = found.get_vocab_size(with_added_tokens=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what panics in the library is no Exception
        raise UserError(
            f"--tokenizer {path} is no file of the package tokenizers ({error}); give the "
            f"{TOKENIZER} of a model, or what Tokenizer.save has written"
        ) from None
    if not known:
        raise UserError(f"--tokenizer {path} knows no tokens; train it before")
    # A file may have been saved with these on; a text is neither cut short nor filled up.
    found.no_truncation()
    found.no_padding()
    return found, data


def end_of(tokenizer: Tokenizer, asked: str | None, path: Path) -> int:
    """Return the number of the token that stands behind each document."""
    known = tokenizer.get_vocab(with_added_tokens=True)
    if asked is not None:
        if asked not in known:
            special = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
            raise UserError(
                f"--end-token {asked}: {path} has no such token; {nearest(asked, special)}"
            )
        return known[asked]
    for name in ENDS:
        if name in known:
            return known[name]
    raise UserError(
        f"{path} has no token of a usual name for the end of a document ({', '.join(ENDS[:4])}, "
        "…); name one of its tokens by --end-token, or add one to the tokenizer"
    )


def frame_of(tokenizer: Tokenizer, end: int, path: Path) -> Frame:
    """Return what the tokenizer's own template puts around a text, without the end token.

    Raises:
        UserError: it puts nothing there, or the end token in front.
    """
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    starts = range(len(whole) - len(inner) + 1)
    at = next((at for at in starts if whole[at : at + len(inner)] == inner), None)
    if at is None or whole == inner:
        raise UserError(
            f"--special-tokens: the template of {path} puts none around a text; leave it away"
        )
    front, behind = whole[:at], whole[at + len(inner) :]
    if front[:1] == [end]:
        token = tokenizer.id_to_token(end)
        raise UserError(
            f"--special-tokens: the template of {path} begins with {token}, which stands behind "
            "each document already, and two would part them; leave --special-tokens away, or name "
            "another token by --end-token"
        )
    return front, behind[:-1] if behind[-1:] == [end] else behind


def encode(
    tokenizer: Tokenizer, block: Block, source: Source, field: str, end: int, frame: Frame
) -> Encoded:
    """Return the tokens of a block, with the end token behind each document.

    Args:
        frame: tokens in front of each document, and behind it.

    Raises:
        UserError: a row is no text; says which.
    """
    ids: list[int] = []
    ends: list[int] = []
    empty = 0
    # Of a text that was cut, a later piece: it is no beginning, which a tokenizer may mark (`▁`).
    before = _encoded(tokenizer, [(0, _BEFORE)], source)[0] if _continues(block, source) else []
    for texts in _some(_texts(block, source, field)):
        for one, (row, given) in zip(_encoded(tokenizer, texts, source), texts, strict=True):
            if not given:
                empty += 1
                continue
            if before:
                (whole,) = _encoded(tokenizer, [(row, _BEFORE + given)], source)
                one = whole[len(before) :] if whole[: len(before)] == before else one
            ids += one if _continues(block, source) else [*frame[0], *one]
            if block.last:
                ids += [*frame[1], end]
                ends.append(len(ids))
    return Encoded(np.array(ids, np.uint32), np.array(ends, np.int64), empty)


def _continues(block: Block, source: Source) -> bool:
    return source.kind == "text" and block.number > 0


def _some(rows: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    found: list[tuple[int, str]] = []
    length = 0
    for number, text in rows:
        found.append((number, text))
        length += len(text)
        if length >= _AT_ONCE:
            yield found
            found, length = [], 0
    if found:
        yield found


def _encoded(tokenizer: Tokenizer, rows: list[tuple[int, str]], source: Source) -> list[list[int]]:
    texts = [text for _, text in rows]
    try:
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except (TypeError, UnicodeError):
        half = [number for number, text in rows if text.encode(errors="ignore").decode() != text]
        if not half:
            raise
        raise UserError(
            f"{source.path}, row {half[0]}: half of a character (a lone surrogate, \\ud8… in "
            "JSON), which is no text; mend that row, or leave it away"
        ) from None
    return [one.ids for one in found]


def _texts(block: Block, source: Source, field: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a block with the numbers of their rows; "" where a row has none."""
    if not isinstance(block.rows, bytes):
        yield from ((block.first + i, row or "") for i, row in enumerate(block.rows))
    elif source.kind == "text":
        yield block.first, _utf8(block.rows, source, "")
    else:
        for i, line in enumerate(block.rows.split(b"\n")):
            if line.strip():
                yield block.first + i, _of_line(line, source, block.first + i, field)


def _utf8(data: bytes, source: Source, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source.path}{where}: not UTF-8 text (byte 0x{data[error.start]:02x}: "
            f"{error.reason}); convert it (iconv -f latin1 -t utf8), or leave it away"
        ) from None


def _of_line(line: bytes, source: Source, number: int, field: str) -> str:
    where = f", line {number}"
    data = _utf8(line, source, where)
    try:
        row = json.loads(data)
    except ValueError as error:
        raise UserError(
            f"{source.path}{where}: no JSON ({error}); each line is one object, such as "
            f'{{"{field}": "…"}}'
        ) from None
    except RecursionError:
        raise UserError(f"{source.path}{where}: objects within objects, too deep") from None
    value: Any = row
    for name in (field,) if isinstance(row, dict) and field in row else field.split("."):
        if value is None and row is not None:  # an object on the way is null: there is no text
            break
        if not isinstance(value, dict) or name not in value:
            has = nearest(name, value) if isinstance(value, dict) else f"it is {_type(value)}"
            raise UserError(
                f"{source.path}{where}: no field {field!r} ({has}); name that of the texts by "
                "--field"
            )
        value = value[name]
    if value is not None and not isinstance(value, str):
        raise UserError(
            f"{source.path}{where}: field {field!r} is {_type(value)}, and a text is "
            "needed; name another one by --field"
        )
    return value or ""


def _type(value: object) -> str:
    return type(value).__name__
