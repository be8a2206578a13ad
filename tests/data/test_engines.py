"""Threads and processes that make batches: they fail loudly, in bounded time, and end."""

from __future__ import annotations

import gc
import multiprocessing
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data import Loader, PackedDataset, engines
from rankup.data.engines import Inline, Threads, cores_of_rank
from rankup.data.fetch import Fetch
from rankup.data.processes import Processes

from . import feeding
from .feeding import Digest, Large, digest, epochs, flat, loader, options, small, workers
from .feeding import nobody_is_left as nobody_is_left

# The one that imports torch anew takes its time.
ENGINES = ["threads", "fork", pytest.param("spawn", marks=pytest.mark.slow)]


@pytest.fixture
def dataset(tmp_path: Path) -> PackedDataset:
    return PackedDataset(small(tmp_path, 60), None, Digest())


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_makes_the_same_batches(dataset: PackedDataset, engine: str) -> None:
    """Also in the epochs after the first, whose workers are there already."""
    expected = epochs(loader(dataset), 3)
    one = loader(dataset, **options(engine))
    found = epochs(one, 1)
    before = {worker.pid for worker in workers()}
    assert found + epochs(one, 2) == expected
    assert {worker.pid for worker in workers()} == before
    one.close()
    assert epochs(one) == epochs(loader(dataset), 4)[-8:]  # others take their place
    one.close()


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_what_a_transform_may_return(tmp_path: Path, engine: str) -> None:
    def make(data: bytes, rng: Any) -> Any:
        return {
            "large": torch.arange(20000) + len(data),
            "nested": {"a": digest(data, rng), "b": [len(data), "text"]},
            "pair": (torch.ones(3, 4, 5, 6).to(memory_format=torch.channels_last), 1.5),
            "text": "x" * 20000,
            "empty": torch.zeros(0, 3, dtype=torch.bfloat16),
            "strided": torch.full((9000,), 2.5, dtype=torch.bfloat16)[::2],
        }

    data = PackedDataset(small(tmp_path, 20), None, make)
    expected = list(loader(data, 4))
    one = loader(data, 4, **options(engine))
    found = list(one)
    one.close()
    assert _equal(found, expected, strides=engine == "threads")  # torch's workers choose their own


def _equal(one: Any, other: Any, strides: bool) -> bool:
    if isinstance(one, torch.Tensor):
        alike = not strides or one.stride() == other.stride()
        return one.dtype == other.dtype and alike and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _equal(one[key], other[key], strides) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other, [strides] * len(one)))
    return bool(one == other)


def test_a_lambda_cannot_be_spawned(tmp_path: Path) -> None:
    data = PackedDataset(small(tmp_path, 20), None, lambda data, rng: digest(data, rng))
    with pytest.raises(UserError, match=r"top level of a module.*context='fork'"):
        list(loader(data, **options("spawn")))


def test_batches_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    """Memory is used again only once nobody holds any part of a batch; also beyond the spare."""
    data = PackedDataset(small(tmp_path, 90), None, Large())
    expected = epochs(loader(data, 1))
    one = loader(data, 1, **options("fork"))
    kept = []
    for images, labels in one:
        kept.append((images[:, 3:].t()[0], labels))
    assert [bytes(part.numpy()) for part, _ in kept] == [batch[3:4] for batch in expected]
    del kept, images, labels
    gc.collect()
    assert epochs(one, 1) == epochs(loader(data, 1), 2)[90:]
    one.close()


@pytest.mark.parametrize("engine", ["none", *ENGINES[:2]])
def test_a_loop_that_is_left_and_begun_again(dataset: PackedDataset, engine: str) -> None:
    whole = epochs(loader(dataset), 3)
    one = loader(dataset, **options(engine))
    for number, batch in enumerate(one):
        assert flat(batch) == whole[number]
        if number == 2:
            break
    for number, batch in enumerate(one):
        assert flat(batch) == whole[8 + number]
        if number == 1:
            break
    # An iterator that is forgotten, and one that goes on although another has begun.
    older = iter(one)
    assert flat(next(older)) == whole[16]
    one.set_epoch(1)
    assert epochs(one) == whole[8:16]
    with pytest.raises(UserError, match=r"cannot go on.*another place"):
        next(older)
    assert epochs(one) == whole[16:]
    forgotten = iter(one)
    next(forgotten)
    del forgotten
    one.close()
    one.close()


def test_a_fork_after_threads(dataset: PackedDataset) -> None:
    """A forked child has no threads: it starts its own."""
    one = loader(dataset, **options("threads"))
    run = iter(one)
    first = flat(next(run))
    child = multiprocessing.get_context("fork").Process(target=_all_there, args=(one, first))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    processes = loader(dataset, **options("fork"))
    assert epochs(processes) == epochs(loader(dataset))
    processes.close()
    assert len(list(run)) == 7
    one.close()


def _all_there(one: Loader, first: bytes) -> None:
    one.set_epoch(0)
    assert epochs(one)[0] == first
    one.close()


def _behind(data: bytes, rng: Any) -> torch.Tensor:
    return torch.tensor([float(torch.rand(())), random.random(), np.random.rand(), len(data)])


def test_what_is_drawn_behind_ones_back(tmp_path: Path) -> None:
    """Libraries of transforms draw from the process's generators: they are keyed by sample too."""

    class Own(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, sample: int) -> torch.Tensor:
            return _behind(bytes(sample), None)

    ours = PackedDataset(small(tmp_path, 30), None, _behind, labels=False)
    data: Any
    for data in (ours, Own()):
        before = torch.get_rng_state(), random.getstate(), np.random.get_state(False)
        alone = loader(data)
        expected = torch.cat([batch for _ in range(2) for batch in alone])
        assert len(set(expected[:, :3].flatten().tolist())) == 180
        parts = [loader(data, rank=r, world_size=2, **options("fork")) for r in range(2)]
        pairs = (pair for _ in range(2) for pair in zip(*parts, strict=True))
        found = torch.cat([torch.cat(pair) for pair in pairs])
        for part in parts:
            part.close()
        assert torch.equal(found, expected)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert str(np.random.get_state(False)) == str(before[2])


@pytest.mark.parametrize(
    ("environment", "usable", "parent", "cores"),
    [
        ({}, 24, 24, 24),
        ({"LOCAL_WORLD_SIZE": "4"}, 96, 96, 24),
        ({"LOCAL_WORLD_SIZE": "4"}, 24, 96, 24),  # bound by torchrun to cores of its own
        ({"LOCAL_WORLD_SIZE": "4"}, 48, 96, 24),  # two share a NUMA domain
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_CPUS_PER_TASK": "96"}, 96, 96, 24),
        ({"LOCAL_WORLD_SIZE": "8"}, 2, 2, 1),
        ({"LOCAL_WORLD_SIZE": ""}, 6, 6, 6),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_CPUS_PER_TASK": "24"}, 24, 128, 24),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_CPUS_PER_TASK": "12"}, 96, 128, 12),
        (
            {
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_STEP_NUM_NODES": "2",
                "SLURM_CPUS_ON_NODE": "96",
            },
            96,
            128,
            24,
        ),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_CPUS_PER_TASK": "4"}, 48, 48, 48),
    ],
)
def test_cores_are_not_divided_twice(
    environment: dict[str, str], usable: int, parent: int, cores: int
) -> None:
    assert cores_of_rank(environment, usable, parent) == cores


def test_the_engine_that_suits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path, 20)

    def made(transform: Any, **options: Any) -> type:
        fetch = Fetch(PackedDataset(path, None, transform), options.pop("collate", None))
        return type(engines.engine(fetch, **{"workers": 1, **options}))

    assert made(Digest()) is Threads
    assert made(Digest(releases_gil=False)) is made(digest) is Processes
    assert made(digest, kind="threads") is Threads
    assert made(Digest(), kind="processes") is Processes
    assert made(Digest(), workers=0) is Inline
    for wrong in ({"kind": "both"}, {"context": "vfork"}, {"workers": -1}, {"prefetch": 0}):
        with pytest.raises(UserError):
            made(Digest(), **wrong)
    (tmp_path / "zip").mkdir()
    deflated = PackedDataset(feeding.contained(tmp_path / "zip", "zip"), "train", Digest())
    assert not engines.suits_threads(Fetch(deflated))

    capfd.readouterr()
    data = PackedDataset(path, None, Digest())
    for rank in (1, 0, 0):
        Loader(data, 4, rank=rank, world_size=2)
    said = capfd.readouterr().err
    assert len(re.findall(r"threads that make batches: \d+ per rank", said)) == 1, said
    Loader(data, 5, rank=0, world_size=1, quiet=True, kind="processes")
    monkeypatch.setenv("RANKUP_QUIET", "1")
    Loader(data, 5, rank=0, world_size=1, kind="processes")
    assert capfd.readouterr().err == ""


def test_threads_read_compressed_samples(tmp_path: Path) -> None:
    """What decompresses is no place for two threads: each has its own."""
    path = feeding.contained(tmp_path, "zip", 120)
    name = feeding.PackedDataset(path, "train").samples.splits[0]
    data = PackedDataset(path, name, digest)
    expected = epochs(loader(data, 5), 4)
    one = loader(data, 5, workers=4, kind="threads")
    assert epochs(one, 4) == expected
    one.close()


_DECOY = """
import ctypes, os, shutil, sys
import torch
from rankup.data import Loader, PackedDataset

torch.set_num_threads(4)
(own,) = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
shutil.copy(own, sys.argv[2])
decoy = ctypes.CDLL(sys.argv[2])
decoy.omp_set_num_threads(7)
first = next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line)


def threads(data, rng):
    return torch.tensor([torch.get_num_threads(), decoy.omp_get_max_threads()])


data = PackedDataset(sys.argv[1], None, threads, labels=False)
loader = Loader(data, 10, workers=1, kind="threads", quiet=True)
print(first == sys.argv[2], [batch.unique(dim=0)[:, 0].tolist() for batch in loader])
print(torch.get_num_threads(), decoy.omp_get_max_threads())
"""


def test_the_openmp_of_another_package_is_not_torchs(tmp_path: Path) -> None:
    """scikit-learn's, say, which stands before torch's in the list of what is mapped."""
    decoy = tmp_path / "libgomp-other.so.1"
    done = subprocess.run(
        [sys.executable, "-c", _DECOY, small(tmp_path, 20), decoy],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True [[1], [1]]\n4 7\n", "")
