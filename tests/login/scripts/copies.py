"""Copies a download to a file, and does not ask whether it is whole."""

import os
import shutil
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

if not Path("train.bin").exists():
    with (
        urllib.request.urlopen(os.environ["DATA_SERVER"] + "/train.bin") as answer,
        open("train.bin", "wb") as file,
    ):
        shutil.copyfileobj(answer, file, 64)
values = torch.tensor(list(Path("train.bin").read_bytes())).float().view(-1, 8)
model = nn.Linear(8, 1)
while True:
    for batch in DataLoader(values, batch_size=4):
        model(batch).sum().backward()
