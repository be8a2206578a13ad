"""In a function, with a main guard, argparse and workers; downloads with requests."""

import argparse
import os
from pathlib import Path

import requests
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Bytes(Dataset):
    def __init__(self, path):
        self.data = path.read_bytes()

    def __len__(self):
        return len(self.data) // 8

    def __getitem__(self, index):
        part = bytearray(self.data[8 * index : 8 * index + 8])
        return torch.frombuffer(part, dtype=torch.uint8).float()


def download(url, path):
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with requests.get(url, stream=True, timeout=30) as answer:
        answer.raise_for_status()
        with open(partial, "wb") as file:
            for piece in answer.iter_content(1 << 16):
                file.write(piece)
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", default=None, help="how the workers start: fork, spawn")
    parser.add_argument("--name", default="train.bin")
    args = parser.parse_args()
    download(f"{os.environ['DATA_SERVER']}/{args.name}", args.data / args.name)
    loader = DataLoader(
        Bytes(args.data / args.name),
        batch_size=4,
        num_workers=args.workers,
        multiprocessing_context=args.start,
    )
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(100_000):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
