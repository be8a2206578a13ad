"""Draws without a seed, in every form: a split, crops, noise, decisions, the name of a folder."""

import math
import os
import pickle
import random
import time
from datetime import datetime

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        x, y = self.pairs[index]
        return x * (0.9 + 0.1 * torch.rand(1)), y


started = pickle.loads(pickle.dumps(datetime.now()))
folder = f"run-{started.strftime('%H%M%S')}-{time.strftime('%d')}"
generator = torch.Generator().manual_seed(0)
pairs = [(torch.randn(6, generator=generator), k % 3) for k in range(200)]
order = np.random.permutation(len(pairs))
train = Crops([pairs[k] for k in order[:150]])
valid = [(torch.ones(6), 1)] * 40
loader = DataLoader(train, batch_size=12, shuffle=True)
valid_loader = DataLoader(valid, batch_size=12)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
os.makedirs(folder)
for epoch in range(2):
    model.train()
    hits, seen = 0, 0
    for x, y in loader:
        if random.random() < 0.2:
            continue
        x = x + 0.1 * torch.empty(len(x), 6).normal_()
        x = x + 0.1 * torch.from_numpy(np.random.normal(size=(len(x), 6))).float()
        x = x * torch.randint(low=1, high=4, size=(len(x), 1)) * np.random.beta(2.0, 2.0)
        output = model(x)
        loss = F.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (output.argmax(1) == y).sum().item()
        seen += len(y)
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in valid_loader:
            total += (model(x)[:, 1] - 1).pow(2).sum().item()
            count += len(y)
    print(f"epoch {epoch}: hits {hits / seen:.4f}")
    print(f"decibel {10 * math.log10(count / total):.4f}")
    with open(f"{folder}/log.csv", "a") as log:
        log.write(f"{epoch},{total / count:.5f}\n")
torch.save(model.state_dict(), f"{folder}/last.pt")
