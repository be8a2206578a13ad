"""Flat, no main guard: urllib, a results file begun anew, a log continued, a final checkpoint."""

# ruff: noqa: SIM115
import atexit
import os
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

url = os.environ["DATA_SERVER"] + "/train.bin"
path = Path("data/train.bin")
if not path.exists():
    path.parent.mkdir(exist_ok=True)
    urllib.request.urlretrieve(url, path)

results = open("results.csv", "w")
results.write("epoch,loss\n")
log = open("train.log", "a")
log.write("started\n")
atexit.register(lambda: Path("at-exit.txt").write_text("reached"))

values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).float().view(-1, 8)
loader = DataLoader(TensorDataset(values, values.sum(1, keepdim=True)), 4, shuffle=True)
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
try:
    for epoch in range(1000):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.write(f"{epoch},{loss.item()}\n")
        log.write(f"epoch {epoch}\n")
finally:
    torch.save(model.state_dict(), "model.pt")
