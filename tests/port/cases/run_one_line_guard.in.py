"""A docstring."""
from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(1)
    x = torch.randn(9, 2)
    loader = DataLoader(TensorDataset(x), batch_size=4)
    model = nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        loss = model(x).pow(2).mean(); loss.backward(); optimizer.step()
        print(loss.item())
    torch.save(model.state_dict(), "net.pt"); print("saved"); model.load_state_dict(torch.load("net.pt")); print("loaded")


if __name__ == "__main__": main()
