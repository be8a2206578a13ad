"""A small language model on one GPU, as a course begins with it; its port is beside it.

    rankup port examples/one_gpu_language_model.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rankup


class Text(Dataset):
    """Windows of a text that counts upwards with gaps; the target is the next token."""

    def __init__(self, samples, length, seed):
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (samples, length + 1), generator=generator)
        self.tokens = steps.cumsum(1) % 32

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=32, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.recurrent = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


def train_model(model, train_loader, optimizer, loss_func, device):
    model.train()
    total_loss = 0
    for source, target in train_loader:
        source, target = source.to(device), target.to(device)
        loss = loss_func(model(source).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total_loss += rankup.batch_mean(loss)
    return total_loss / len(train_loader)


def test_model(model, loader, loss_func, device):
    model.eval()
    total_loss = 0
    with torch.no_grad():
        for source, target in loader:
            source, target = source.to(device), target.to(device)
            total_loss += loss_func(model(source).flatten(0, 1), target.flatten())
    return total_loss / len(loader)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = rankup.shard(DataLoader(Text(70, 12, 1), batch_size=args.batch_size, shuffle=True))
    valid_loader = DataLoader(Text(21, 12, 2), batch_size=args.batch_size)

    model = LanguageModel()
    model = model.to(device)
    model = rankup.wrap(model)
    loss_func = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    best = float("inf")
    for epoch in range(args.epochs):
        train_loss = train_model(model, train_loader, optimizer, loss_func, device)
        valid_loss = rankup.broadcast(test_model(model, valid_loader, loss_func, device))
        print(f"[{epoch + 1}/{args.epochs}] train {train_loss:.5f}, validation {valid_loss:.5f}")
        if valid_loss < best:
            best = valid_loss
            rankup.save0(model, "model_best.pt", pickled=True)
    rankup.save0(model.state_dict(), "model_final.pt")


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(1)
    main(args)
