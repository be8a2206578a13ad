import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

history = []
kept = {"even": [], "odd": []}
for epoch in range(2):
    batch_losses, others = [], []
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        batch_losses.append(loss.item())
        others += [loss.item()]
        kept["odd" if step % 2 else "even"].append(loss.item())
    history.append(sum(batch_losses) / len(batch_losses))
    best = min(others)
print(history, best, {name: sum(values) for name, values in kept.items()})


def fit(batches):
    for inputs, labels in rankup.shard(batches):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    return loss.item()


for size in (8, 15, 22):
    part = torch.utils.data.Subset(loader.dataset, range(size))
    print(fit(DataLoader(part, batch_size=6, shuffle=True)))
