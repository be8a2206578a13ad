import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

from helper_split import test_loader, train_loader

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(args.epochs):
    model.train()
    for x, y in train_loader:
        loss = (model(x)[:, 0] - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = count = 0
    with torch.no_grad():
        for x, y in test_loader:
            total += (model(x)[:, 0] - y).pow(2).sum().item()
            count += len(y)
    print(epoch, total / count)
