"""A data set that downloads while it is drawn from is drawn from to its end."""

from __future__ import annotations

import pytest

from ...web import Web
from .running import Runner

_SCRIPT = """\
    import os, urllib.request
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split

    def sample(index):
        path = f"sample-{index}.bin"
        if not os.path.exists(path):
            urllib.request.urlretrieve(f"BASE/{index}.bin", path)
        return torch.tensor([float(open(path).read())])

    class Lazy(Dataset):
        def __init__(self, numbers):
            self.numbers = numbers
        def __len__(self):
            return len(self.numbers)
        def __getitem__(self, index):
            return sample(self.numbers[index])

    class Backwards:
        def __len__(self):
            return 12
        def __iter__(self):
            return iter(range(11, -1, -1))

    class Stream(IterableDataset):
        def __iter__(self):
            return map(sample, range(8, 12))

    if __name__ == "__main__":
        model = torch.nn.Linear(1, 1)
        LOADERS
        for batch in train:
            model(batch)
            open("trained.txt", "w")
    """


def _serve(run: Runner, web: Web, loaders: str) -> str:
    for index in range(12):
        web.put(f"/{index}.bin", str(index).encode())
    return _SCRIPT.replace("BASE", web.url()).replace("LOADERS", loaders)


def _files(run: Runner) -> list[str]:
    return sorted(path.name for path in run.folder.glob("sample-*"))


def test_all_samples_are_drawn_of_every_loader_also_of_a_stream(run: Runner, web: Web) -> None:
    loaders = """\
train = DataLoader(Lazy(range(6)), batch_size=2, shuffle=True)
        valid = DataLoader(Lazy(range(6, 8)))
        stream = DataLoader(Stream(), batch_size=2)
        next(iter(stream))"""
    done = run(_serve(run, web, loaders))
    assert len(_files(run)) == 12, done.explain()
    assert done.one("stop")["reached"] == "batch and forward"
    lazy = done.one("lazy")
    assert (lazy["count"], lazy["streams"]) == (2, False)
    assert not (run.folder / "trained.txt").exists()


@pytest.mark.slow
def test_what_workers_are_downloading_is_waited_for_and_no_sample_comes_twice(
    run: Runner, web: Web
) -> None:
    """They draw ahead: by the first forward they are at samples that the walk would draw, too."""
    loaders = """\
train = DataLoader(
            random_split(Lazy(range(12)), [12])[0],
            2,
            num_workers=64,
            persistent_workers=True,
            sampler=Backwards(),
        )
        print(train.num_workers)"""
    text = _serve(run, web, loaders)
    for index in range(2, 12):
        web.put(f"/{index}.bin", str(index).encode(), stall=0.3, times=1)
    done = run(text)
    assert done.one("stop")
    assert len(_files(run)) == 12, done.explain()
    assert [len(web.requests(f"/{index}.bin")) for index in range(12)] == [1] * 12
    assert done.one("batch")["worker_downloads"] is True
    assert done.one("start")["pid"] not in {one["pid"] for one in done.of("url")}
    assert done.of("lazy")[0]["where"].startswith("train.py:8")
    assert done.out == "2\n", "no more workers than threads"


def test_a_sample_that_cannot_be_had_ends_the_script_with_its_error(run: Runner, web: Web) -> None:
    """Here in a proof that was asked to walk."""
    text = _serve(run, web, "train = DataLoader(Lazy(range(8)), batch_size=2)")
    for index in range(7):  # all but the last
        run.file(f"sample-{index}.bin", str(index))
    done = run(text, mode="proof", walk=True, block=True)
    assert done.code == 1
    assert "in sample" in done.err
    assert done.one("connect")["refused"] is True
    assert done.one("url")["url"] == web.url("/7.bin")
    assert done.one("end")["type"] == "urllib.error.URLError"
    assert not done.of("stop")
    assert not web.requests()
