"""Records of different lengths as one batch."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data import Loader, Pad
from rankup.data.fetch import Masked, Padded
from rankup.data.orders import ByLength


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    multiple=st.integers(1, 16),
    rest=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from([torch.int64, torch.float32, torch.uint8, torch.bool]),
)
def test_values_stand_first_and_the_rest_is_filled(
    lengths: list[int], multiple: int, rest: tuple[int, ...], dtype: torch.dtype
) -> None:
    records = [torch.randint(0, 2, (length, *rest)).to(dtype) for length in lengths]
    values, found, mask = Pad(1, multiple=multiple, mask=True)(records)
    assert values.shape == (len(lengths), values.shape[1], *rest)
    assert values.shape[1] % multiple == 0
    assert values.shape[1] - multiple < max(*lengths, 1) <= values.shape[1]
    assert (values.dtype, found.dtype, mask.dtype) == (dtype, torch.int64, torch.bool)
    assert found.tolist() == lengths == mask.sum(1).tolist()
    for row, record in zip(values, records, strict=True):
        assert torch.equal(row[: len(record)], record)
        assert (row[len(record) :] == 1).all()


def test_records_of_lists_and_arrays() -> None:
    values, lengths = Pad()([[1, 2, 3], [], [4]])
    assert values.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert (values.dtype, lengths.tolist()) == (torch.int64, [3, 0, 1])
    read_only = np.frombuffer(np.array([1, 2], ">f4").tobytes(), ">f4")
    values, _ = Pad(-1, multiple=4)([read_only])
    assert torch.equal(values, torch.tensor([[1.0, 2.0, -1.0, -1.0]]))


def test_parts_of_an_item_are_padded_apart() -> None:
    source, target, label = Pad()([(torch.ones(2), [7], 5), (torch.ones(3), [8, 9], 6)])
    assert isinstance(source, Padded)
    assert source.values.shape == (2, 3)
    assert target.values.tolist() == [[7, 0], [8, 9]]
    assert label.tolist() == [5, 6]
    named = Pad(mask=True)([{"ids": [1], "key": "a"}, {"ids": [2, 3], "key": "b"}])
    assert isinstance(named["ids"], Masked)
    assert named["ids"].mask.tolist() == [[True, False], [True, True]]
    assert named["key"] == ["a", "b"]


def test_one_width_for_all_batches() -> None:
    pad = Pad(width=8)
    assert [pad([[1] * n]).values.shape[1] for n in (1, 8)] == [8, 8]
    with pytest.raises(UserError, match="a record of 9 is longer than width=8"):
        pad([[1] * 9])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "a batch without samples"),
        ([torch.ones(2), torch.ones(2, dtype=torch.int64)], "differ in more than their length"),
        ([torch.ones(2, 3), torch.ones(2, 4)], "differ in more than their length"),
        ([([1], 2), ([1],)], "tuples of different lengths"),
        ([{"a": [1]}, {"b": [1]}], "different names"),
        ([["a", "b"]], "records are numbers"),
    ],
)
def test_what_is_no_batch(items: Sequence[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pad()(items)


@pytest.mark.parametrize("options", [{"multiple": 0}, {"width": 0}, {"width": 12, "multiple": 8}])
def test_widths_without_sense(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="has to be a"):
        Pad(**options)  # type: ignore[arg-type]


def test_a_loader_of_records_by_length() -> None:
    records = [([n] * (n % 17), n) for n in range(101)]
    lengths = np.array([len(record) for record, _ in records])
    order = ByLength(lengths, 1, 10)
    loader = Loader(records, 10, shuffle=order, collate=pickle.loads(pickle.dumps(Pad())),  # type: ignore[arg-type]
                    workers=0, rank=0, world_size=1)  # fmt: skip
    seen = []
    for (values, sizes), numbers in loader:
        seen += numbers.tolist()
        assert sizes.tolist() == [n % 17 for n in numbers.tolist()]
        assert values.sum(1).tolist() == [n * (n % 17) for n in numbers.tolist()]
    assert sorted(seen) == list(range(101))
