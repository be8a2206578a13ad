"""Refuses to start without a GPU, and asks for its properties."""

import os
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

assert torch.cuda.is_available(), "this needs a GPU"
print("running on", torch.cuda.get_device_name(0))
assert torch.cuda.get_device_properties(0).total_memory > 2**30
if not Path("train.bin").exists():
    urllib.request.urlretrieve(os.environ["DATA_SERVER"] + "/train.bin", "train.bin")
generator = torch.Generator(device="cuda")
model = nn.Linear(8, 1, device="cuda:0")
values = torch.tensor(list(Path("train.bin").read_bytes())).float().view(-1, 8)
for batch in DataLoader(values, batch_size=4):
    noise = torch.randn(batch.shape, generator=generator, device="cuda")
    model(batch.to("cuda") + noise).sum().backward()
