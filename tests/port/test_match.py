"""Patterns of calls with holes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.match import Pattern
from rankup.script.source import from_bytes

TEXT = """\
import torch
from torch import load as fetch
from torch.utils.data import DistributedSampler as Sampler, distributed
torch.load("a.pt")
fetch(f="b.pt", map_location="cpu")
torch.load("c.pt", "cuda:0", weights_only=True)
torch.load("d.pt", **options)
torch.load(*paths)
model.to("cpu")
model.net.to(device="cpu", non_blocking=True)
torch.to("cpu")
distributed.DistributedSampler(data, 2, 0, False)
DistributedSampler(data)
print(1)
console.print(2)
"""


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["torch.load(f=_path, map_location=ABSENT)"], ["'a.pt'"]),
        (["torch.load(f=_path, map_location=_place)"], ["'b.pt'", "'c.pt'"]),
        (["torch.load(f=_path, map_location='cpu')"], ["'b.pt'"]),
        (["torch.load(f=_path, map_location=[_place])"],
         ["'a.pt'", "'b.pt'", "'c.pt'", "'d.pt'"]),
        (["_path.to(device='cpu')"], ["model", "model.net"]),
        (["torch.load(f=_path, map_location='cpu')", "_path.to(device='cpu')"],
         ["'b.pt'", "model", "model.net"]),
        (["__.DistributedSampler(dataset=_path, num_replicas=[_], rank=[_], shuffle=[_on])"],
         ["data", "data"]),
        (["print(values=_path)"], ["1"]),
    ],
)  # fmt: skip
def test_what_a_pattern_finds(patterns: list[str], found: list[str]) -> None:
    file = from_bytes(Path("train.py"), TEXT.encode())
    places = [file.code(one["path"]).replace('"', "'") for one in Pattern(*patterns).find(file)]
    assert places == found


def test_an_argument_that_may_be_left_out() -> None:
    file = from_bytes(Path("train.py"), TEXT.encode())
    pattern = "__.DistributedSampler(dataset=_, num_replicas=[_], rank=[_], shuffle=[_on])"
    found = [one.get("on") for one in Pattern(pattern).find(file)]
    assert [one and file.code(one) for one in found] == ["False", None]
    with pytest.raises(ValueError, match="no call"):
        Pattern("torch.load")
    with pytest.raises(ValueError, match="named"):
        Pattern("torch.load(_path)")
