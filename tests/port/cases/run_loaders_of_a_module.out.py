import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

import rankup

rankup.setup()
rankup.quiet()

from helper_split import test_loader, train_loader

model = torch.nn.Linear(2, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(args.epochs):
    model.train()
    for x, y in rankup.shard(train_loader):
        loss = (model(x)[:, 0] - y).pow(2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    model.eval()
    total = count = 0
    with torch.no_grad():
        for x, y in rankup.shard(test_loader, train=False):
            total += (model(x)[:, 0] - y).pow(2).sum().item()
            count += len(y)
        total, count = rankup.total(total, count)
    print(epoch, total / count)
