"""A package of the user's own beside it, relative paths, and a shape test before any batch."""

import argparse
from pathlib import Path

import torch
from own.data import load
from own.net import Net
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("files", nargs="*")
args = parser.parse_args()
assert Path(__file__).name == "splits.py"
assert __name__ == "__main__"
assert args.files == ["a b", "*", "$HOME"], args.files

net = Net()
train, test = load("train.bin"), load("test.bin")
print(net(torch.zeros(1, 8)).shape)
for _ in range(args.epochs):
    for x in DataLoader(train, batch_size=4):
        net(x).sum().backward()
    for x in DataLoader(test, batch_size=4):
        net(x)
