"""A loop without a DataLoader, that keeps nothing of what it downloads: no cache, no proof."""

import os
import urllib.request

import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
while True:
    with urllib.request.urlopen(os.environ["DATA_SERVER"] + "/train.bin") as answer:
        values = torch.tensor(list(answer.read())).float().view(-1, 8)
    model(values).sum().backward()
    optimizer.step()
