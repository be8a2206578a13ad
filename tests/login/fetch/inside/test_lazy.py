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
            return map(sample, range(6))

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


def test_all_samples_are_drawn_also_those_of_the_validation_set(run: Runner, web: Web) -> None:
    loaders = """\
train = DataLoader(Lazy(range(8)), batch_size=2, shuffle=True)
        valid = DataLoader(Lazy(range(8, 12)))"""
    done = run(_serve(run, web, loaders))
    assert len(_files(run)) == 12, done.explain()
    assert done.one("stop")["reached"] == "batch and forward"
    lazy = done.one("lazy")
    assert (lazy["count"], lazy["streams"]) == (2, False)
    assert done.of("walk")[-1]["done"] == 4
    assert not (run.folder / "trained.txt").exists()


def test_workers_that_download_are_noticed_and_used_for_the_rest(run: Runner, web: Web) -> None:
    loaders = "train = DataLoader(random_split(Lazy(range(12)), [12])[0], 2, num_workers=2)"
    done = run(_serve(run, web, loaders))
    assert len(_files(run)) == 12, done.explain()
    assert done.one("batch")["worker_downloads"] is True
    workers = {one["pid"] for one in done.of("url")}
    assert done.one("start")["pid"] not in workers
    assert done.of("lazy")[0]["where"].startswith("train.py:8")


@pytest.mark.parametrize("more", ["", ", persistent_workers=True, sampler=Backwards()"])
def test_what_workers_are_downloading_is_waited_for(run: Runner, web: Web, more: str) -> None:
    """They draw ahead: by the first forward they are at samples that the walk would draw, too."""
    loaders = f"train = DataLoader(Lazy(range(12)), 2, num_workers=2{more})"
    text = _serve(run, web, loaders)
    for index in range(2, 12):
        web.put(f"/{index}.bin", str(index).encode(), stall=0.5, times=1)
    done = run(text)
    assert done.one("stop")
    assert len(_files(run)) == 12, done.explain()
    assert [len(web.requests(f"/{index}.bin")) for index in range(12)] == [1] * 12


def test_a_data_set_that_can_only_be_iterated_is_iterated_to_its_end(run: Runner, web: Web) -> None:
    done = run(_serve(run, web, "train = DataLoader(Stream(), batch_size=2)"))
    assert len(_files(run)) == 6, done.explain()
    assert done.one("stop")


def test_a_sample_that_cannot_be_had_ends_the_script_with_its_error(run: Runner, web: Web) -> None:
    text = _serve(run, web, "train = DataLoader(Lazy(range(8)), batch_size=2)")
    web.remove("/7.bin")
    done = run(text)
    end = done.one("end")
    assert (done.code, end["code"], end["type"]) == (1, 1, "urllib.error.HTTPError"), done.explain()
    assert "in sample" in done.err
    assert "rankup" not in done.err
    assert not done.of("stop")


def test_a_proof_walks_only_where_it_is_asked_to(run: Runner, web: Web) -> None:
    text = _serve(run, web, "train = DataLoader(Lazy(range(8)), batch_size=2)")
    assert run(text, mode="proof").one("stop")
    assert len(_files(run)) == 2
    for index in range(7):  # all but the last
        run.file(f"sample-{index}.bin", str(index))
    done = run(text, mode="proof", walk=True, block=True)
    assert done.code == 1
    assert done.one("connect")["refused"] is True
    assert done.one("url")["url"] == web.url("/7.bin")
    assert done.one("end")["type"] == "urllib.error.URLError"


def test_a_data_set_that_downloads_nothing_is_not_walked_through(run: Runner) -> None:
    done = run("""\
        import torch
        from torch.utils.data import DataLoader
        model = torch.nn.Linear(1, 1)
        for batch in DataLoader([torch.zeros(1)] * 8):
            model(batch)
        """)
    assert done.one("stop")
    assert not done.of("walk")
    assert not done.of("lazy")
