"""Windows over files of tokens and over rows of arrays; texts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data import BadSample, Loader, PackedDataset, Pad, Tokens, Windows
from rankup.data.errors import BadContainer
from rankup.data.orders import ByLength
from rankup.data.stage.staging import release, stage
from rankup.data.tokens import text
from rankup.recipes.text import tokenize

from ..conftest import TextFiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


def numbers(count: int, dtype: str = "<u2") -> np.ndarray[Any, Any]:
    return (np.arange(count) * 7919 % 50_000).astype(dtype)


@given(
    count=st.integers(2, 300),
    window=st.integers(1, 40),
    stride=st.none() | st.integers(1, 60),
    dtype=st.sampled_from(["<u2", "<u4", "<i8", ">i4"]),
    npy=st.booleans(),
)
def test_every_window_that_fits(
    folder: Path, count: int, window: int, stride: int | None, dtype: str, npy: bool
) -> None:
    values = numbers(count, dtype)
    path = folder / f"{count}{dtype[1:]}{ord(dtype[0])}{'.npy' if npy else '.bin'}"
    np.save(path, values) if npy else values.tofile(path)
    if count < window + 1:
        with pytest.raises(UserError, match=f"{count} tokens, and an item needs {window + 1}"):
            Tokens(path, window, dtype=None if npy else dtype, stride=stride)
        return
    tokens = Tokens(path, window, dtype=None if npy else dtype, stride=stride)
    step = stride or window
    starts = [at for at in range(0, count, step) if at + window + 1 <= count]
    assert len(tokens) == len(starts)
    for item, start in enumerate(starts):
        x, y = tokens[item]
        assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
        assert x.tolist() == values[start : start + window].tolist()
        assert y.tolist() == values[start + 1 : start + window + 1].tolist()
    assert torch.equal(tokens[-1][0], tokens[len(starts) - 1][0])
    for outside in (len(starts), -len(starts) - 1):
        with pytest.raises(IndexError, match="no window"):
            tokens[outside]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_through_the_loader(folder: Path, workers: int) -> None:
    values = numbers(1001)
    values.tofile(folder / "epoch.bin")
    tokens = Tokens(folder / "epoch.bin", 10)
    loader = Loader(tokens, 16, seed=1, workers=workers, rank=0, world_size=1)
    seen = []
    for x, y in loader:
        assert x.is_contiguous()
        assert y.is_contiguous()  # models take y.view(-1)
        assert torch.equal(x[:, 1:], y[:, :-1])
        seen += x[:, 0].tolist()
    loader.close()
    assert sorted(seen) == sorted(values[:1000:10].tolist())


def test_it_travels_without_its_tokens(folder: Path) -> None:
    numbers(100_000).tofile(folder / "large.bin")
    tokens = Tokens(folder / "large.bin", 10)
    tokens[3]
    travelled = pickle.dumps(tokens)
    assert len(travelled) < 2000
    assert torch.equal(pickle.loads(travelled)[5][1], tokens[5][1])


def test_tokens_beyond_the_vocabulary(folder: Path) -> None:
    values = np.arange(100, dtype="<u2")
    values[57] = 4000
    values.tofile(folder / "vocab.bin")
    tokens = Tokens(folder / "vocab.bin", 10, vocab=100)
    assert tokens[4][1].tolist() == list(range(41, 51))
    with pytest.raises(BadContainer, match="token 57 is 4000, and the vocabulary has 100"):
        tokens[5]
    # The last token that a window predicts is in its y alone.
    with pytest.raises(BadContainer, match="token 57 is 4000"):
        Tokens(folder / "vocab.bin", 19, vocab=100)[2]
    signed = np.array([1, 2, -3, 4, 5], "<i4")
    signed.tofile(folder / "signed.bin")
    with pytest.raises(BadContainer, match="token 2 is -3"):
        Tokens(folder / "signed.bin", 4, dtype="int32", vocab=100)[0]


def test_the_folder_of_a_text_recipe(tmp_path: Path, small_text: TextFiles) -> None:
    sources: dict[str, Path | None] = {"train": small_text.train, "valid": None, "test": None}
    made = tokenize(sources, "word", tmp_path / "tokens")
    for split, values in made.splits.items():
        tokens = Tokens(tmp_path / "tokens", 8, split=split, vocab=made.vocab_size)
        assert len(tokens) == (len(values) - 1) // 8
        assert tokens[1][0].tolist() == values[8:16].tolist()
    with pytest.raises(UserError, match=r"name one of its splits.*test, train, valid"):
        Tokens(tmp_path / "tokens", 8)
    with pytest.raises(UserError, match="no split 'vaild'; did you mean valid"):
        Tokens(tmp_path / "tokens", 8, split="vaild")
    path = tmp_path / "tokens" / "tokens.bin"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadContainer, match="has 100 bytes"):
        Tokens(tmp_path / "tokens", 8, split="test")
    (tmp_path / "tokens" / "tokens.json").write_text("[]")
    with pytest.raises(BadContainer, match="no complete"):
        Tokens(tmp_path / "tokens", 8, split="test")


def _odd(path: Path) -> Path:
    path.write_bytes(b"123")
    return path


def _saved(path: Path, array: Any) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (lambda f: f / "none.bin", {}, UserError, "is not there"),
        (lambda f: _odd(f / "odd.bin"), {}, BadContainer, "3 bytes, which is no whole number"),
        (lambda f: _odd(f / "odd.bin"), {"dtype": "uint8", "window": 3}, UserError, "3 tokens"),
        (lambda f: _odd(f / "odd.bin"), {"dtype": "float32"}, UserError, "whole numbers"),
        (lambda f: _odd(f / "odd.bin"), {"dtype": "uint17"}, UserError, "no type of numbers"),
        (lambda f: _odd(f / "odd.bin"), {"window": 0}, UserError, "window=0"),
        (lambda f: _odd(f / "odd.bin"), {"stride": 0}, UserError, "stride=0"),
        (lambda f: _odd(f / "odd.bin"), {"vocab": 0}, UserError, "vocab=0"),
        (lambda f: _odd(f / "odd.bin"), {"split": "train"}, UserError, "only a folder has splits"),
        (lambda f: _odd(f / "odd.npy"), {}, BadContainer, "damaged"),
        (lambda f: _saved(f / "f.npy", np.ones(9)), {}, UserError, "whole numbers"),
        (lambda f: _saved(f / "2.npy", np.ones((3, 3), int)), {}, UserError, "of one axis"),
        (lambda f: _saved(f / "o.npy", np.array([{}])), {}, UserError, "Python objects"),
        (lambda f: _saved(f / "d.npy", np.arange(9)), {"dtype": "u2"}, UserError, "says its own"),
        (lambda f: f, {}, BadContainer, "no complete tokens.bin"),
    ],
)
def test_what_is_no_file_of_tokens(
    tmp_path: Path, make: Any, options: dict[str, Any], error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Tokens(make(tmp_path), **{"window": 4, **options})


@given(count=st.integers(1, 80), window=st.integers(1, 20), stride=st.none() | st.integers(1, 25))
def test_windows_over_rows(folder: Path, count: int, window: int, stride: int | None) -> None:
    series = np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3)
    np.save(folder / f"series{count}.npy", series)
    data = PackedDataset(folder / f"series{count}.npy")
    if count < window:
        with pytest.raises(UserError, match=f"{count} rows, and an item needs {window}"):
            Windows(data, window, stride)
        return
    windows = Windows(data, window, stride)
    starts = list(range(0, count - window + 1, stride or window))
    assert len(windows) == len(starts)
    found = torch.stack(windows.__getitems__(range(len(windows))))
    assert np.array_equal(found, np.stack([series[at : at + window] for at in starts]))
    assert torch.equal(windows[-1], found[-1])
    with pytest.raises(IndexError):
        windows[len(windows)]
    loader = Loader(windows, 4, workers=0, rank=0, world_size=1)
    shuffled = sorted(float(batch[0, 0]) for one in loader for batch in one[:, 0])
    assert shuffled == [at * 6.0 for at in starts]
    reverse = Windows(data.subset(range(count - 1, -1, -1)), window, stride)
    assert np.array_equal(reverse[0], series[::-1][:window])


def test_windows_are_of_numbers(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    with pytest.raises(UserError, match="bytes"):
        Windows(PackedDataset(tmp_path / "texts"), 1)
    np.save(folder / "twice.npy", np.arange(9))
    with pytest.raises(UserError, match="changed by a transform"):
        Windows(PackedDataset(folder / "twice.npy", transform=lambda data, rng: data), 2)
    with pytest.raises(UserError, match="window=0"):
        Windows(PackedDataset(folder / "twice.npy"), 0)


def test_a_data_set_of_texts_in_batches_of_similar_lengths(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number:02}.txt").write_text("ä" * (number % 7 + 1))

    def letters(data: bytes | memoryview, rng: np.random.Generator) -> list[int]:
        return [ord(letter) for letter in text(data, rng)]

    texts = PackedDataset(tmp_path / "texts", transform=letters)
    order = ByLength(texts.lengths, 1, 5)
    loader = Loader(texts, 5, shuffle=order, collate=Pad(), workers=0, rank=0, world_size=1)
    sizes = [lengths.tolist() for _, lengths in loader]
    assert sorted(sum(sizes, [])) == sorted(number % 7 + 1 for number in range(30))  # noqa: RUF017
    assert max(max(one) - min(one) for one in sizes) <= 2
    (tmp_path / "texts" / "07.txt").write_bytes(b"\xff")
    again = PackedDataset(tmp_path / "texts", transform=text)
    with pytest.raises(BadSample, match=r"07\.txt.*not UTF-8 text"):
        again[7]


@pytest.mark.parametrize("name", ["staged.bin", "staged.npy"])
def test_the_copy_on_this_node_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(tmp_path))
    values = numbers(5000)
    path = tmp_path / name
    np.save(path, values) if path.suffix == ".npy" else values.tofile(path)
    assert Tokens(path, 10).staged is None
    done = stage(path, reserve=0)
    tokens = Tokens(path, 10)
    assert tokens.staged == done.root
    flipped = values + 1  # to see whose bytes are read
    with done.root.open("r+b") as file:
        file.seek(-flipped.nbytes, 2)
        file.write(flipped.tobytes())
    travelled = pickle.dumps(tokens)
    for one in (tokens, pickle.loads(travelled)):
        assert one[7][1].tolist() == flipped[71:81].tolist()
    release()
    again = pickle.loads(travelled)
    assert (again.staged, again[7][1].tolist()) == (None, values[71:81].tolist())
    stage(path, reserve=0)
    np.save(path, values[::-1]) if path.suffix == ".npy" else values[::-1].tofile(path)
    assert Tokens(path, 10).staged is None  # it is another file now


@pytest.mark.parametrize("dtype", ["<u4", "<i8", ">u4"])
def test_wider_numbers_are_not_taken_for_uint16(folder: Path, dtype: str) -> None:
    path = folder / f"wider{dtype[1:]}{ord(dtype[0])}.bin"
    numbers(500, dtype).tofile(path)
    with pytest.raises(UserError, match=r'every second token is 0.*dtype="uint32"'):
        Tokens(path, 10)
    assert Tokens(path, 10, dtype=dtype)[0][0].tolist() == numbers(10).tolist()
    assert len(Tokens(path, 10, dtype="uint16")) > 50  # as asked
    np.zeros(500, "<u2").tofile(path)
    assert int(Tokens(path, 10)[0][0].sum()) == 0
