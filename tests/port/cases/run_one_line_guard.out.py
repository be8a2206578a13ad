"""A docstring."""
from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup


def main():
    torch.manual_seed(1)
    x = torch.randn(9, 2)
    loader = rankup.shard(DataLoader(TensorDataset(x), batch_size=4))
    model = nn.Linear(2, 1); model = rankup.wrap(model); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        loss = model(x).pow(2).mean(); rankup.backward(loss); optimizer.step()
        print(loss.item())
    rankup.save0(model.state_dict(), "net.pt"); print("saved"); rankup.barrier(); model.load_state_dict(torch.load("net.pt", map_location=rankup.here)); print("loaded")


if __name__ == "__main__": rankup.setup(); rankup.quiet(); main()
