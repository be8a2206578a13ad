"""Memory of batches that is used again."""

from __future__ import annotations

import threading

import numpy as np
import torch

from rankup.data.making import Reused

SHAPE = (40, 100, 30)


def test_memory_comes_back_once_nobody_holds_the_batch() -> None:
    room = Reused(2)
    first = room(SHAPE, torch.float32)
    at = first.data_ptr()
    part = first.permute(0, 2, 1)[3].numpy()  # all that is left of it
    part[:] = 7
    del first
    other = room(SHAPE, torch.float32).fill_(1)
    assert other.data_ptr() != at
    assert (part == 7).all()
    del part
    again = room((40, 100, 29), torch.float32)  # as the last batch of an epoch
    assert again.data_ptr() == at
    assert (again.shape, again.is_contiguous()) == ((40, 100, 29), True)
    del other, again
    assert room((2, 100, 30), torch.uint8).data_ptr() != at  # too small for it
    assert room((900_000,), torch.int64).fill_(1).sum() == 900_000


def test_no_more_is_kept_than_is_asked_for() -> None:
    room = Reused(2)
    batches = [room(SHAPE, torch.uint8) for _ in range(6)]
    del batches
    assert len(room._free) == 2


def test_threads_never_have_the_same_memory() -> None:
    room = Reused(3)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            batch = room(SHAPE, torch.uint8).fill_(number)
            if not np.all(batch.numpy() == number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
