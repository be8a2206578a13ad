from itertools import islice

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


def train(batches):
    model.train()
    for inputs, labels in batches:
        losses = F.cross_entropy(model(inputs), labels, reduction="none")
        positive = labels == 1
        loss = losses[positive].sum() / positive.sum().clamp(min=1)
        rankup.count(positive.sum())
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        print(loss.item())


def hits(batches):
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, labels in batches:
            right += (model(inputs).argmax(1) == labels).sum().item()
    return right


torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0.8).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
valid = DataLoader(TensorDataset(x, y), batch_size=5)
model = torch.nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    train(islice(rankup.shard(loader), 3))
    print(hits(islice(valid, 2)))
