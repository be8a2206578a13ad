"""Downloads a sample when it is drawn; the sampler shuffles. Argument: how many workers."""

import os
import sys
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        path = Path("data") / f"{index}.bin"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            urllib.request.urlretrieve(f"{os.environ['DATA_SERVER']}/{path.name}", path)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).float()


def main():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    while True:
        for x in DataLoader(Remote(), 3, shuffle=True, num_workers=int(sys.argv[1])):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
