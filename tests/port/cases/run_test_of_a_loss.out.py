import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(5)
x = torch.randn(46, 6)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x[:30], y[:30]), batch_size=8))
held = DataLoader(TensorDataset(x[30:], y[30:]), batch_size=5)
model = nn.Linear(6, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
criterion = nn.CrossEntropyLoss()
best, kept, skipped = 9.0, 0, 0
batches = iter(held)


def step(inputs, labels):
    global skipped
    loss = criterion(model(inputs), labels)
    if not torch.isfinite(rankup.batch_mean(loss)) or rankup.batch_mean(loss.item()) > 0.7:
        skipped += 1
        return
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()


for epoch in range(3):
    for inputs, labels in loader:
        with torch.no_grad():
            try:
                seen, wanted = next(batches)
            except StopIteration:
                batches = iter(held)
                seen, wanted = next(batches)
            print(f"held {criterion(model(seen), wanted).item():.5f}")
        loss = criterion(model(inputs), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        if loss.item() < best:
            best = loss.item()
            kept += 1
        scheduler.step(loss)
    print(f"best {best:.5f} {kept} rate {optimizer.param_groups[0]['lr']:.5f}")
for inputs, labels in loader:
    step(inputs, labels)
print(f"skipped {skipped} weights {sum(p.abs().sum() for p in model.parameters()).item():.5f}")
