"""A classifier as single-GPU scripts are written: trains, evaluates, keeps the best, saves."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import rankup


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def data(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long())


def train(model, device, loader, optimizer):
    model.train()
    total, seen = 0.0, 0
    for x, y in rankup.shard(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += rankup.batch_mean(loss.item()) * rankup.batch_sum(len(y))
        seen += rankup.batch_sum(len(y))
    return total / seen


def evaluate(model, device, loader):
    model.eval()
    correct = 0
    loss, seen = 0.0, 0
    with torch.no_grad():
        for x, y in rankup.shard(loader):
            x, y = x.to(device), y.to(device)
            output = model(x)
            loss += F.cross_entropy(output, y, reduction="sum").item()
            correct += (output.argmax(1) == y).sum().item()
            seen += len(y)
    return float(rankup.mean(loss, seen)), float(rankup.mean(correct, seen))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(1)
    _local_rank, _rank, device, _world_size = rankup.setup()
    rankup.quiet()
    train_loader = DataLoader(
        data(2000, 0), batch_size=args.batch_size, shuffle=True, num_workers=2
    )
    valid_loader = DataLoader(data(300, 1), batch_size=args.batch_size)
    model = rankup.wrap(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best = 0.0
    for epoch in range(args.epochs):
        train_loss = train(model, device, train_loader, optimizer)
        valid_loss, accuracy = evaluate(model, device, valid_loader)
        print(
            f"epoch {epoch}: train {train_loss:.5f} valid {valid_loss:.5f} accuracy {accuracy:.4f}"
        )
        if accuracy > best:
            best = accuracy
            rankup.save0({"model": model.state_dict(), "epoch": epoch}, "best.pt")
    rankup.save0(model.state_dict(), "last.pt")


if __name__ == "__main__":
    main()
