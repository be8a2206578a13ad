import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0
        self.avg = 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(loader, model):
    model.eval()
    correct, seen = 0, 0
    with torch.no_grad():
        for x, y in rankup.shard(loader, train=False):
            correct += (model(x).argmax(1) == y).sum().item()
            seen += y.size(0)
        correct, seen = rankup.total(correct, seen)
    model.train()
    return correct / seen


def spread(values):
    return float(values.std())


random.seed(1)
torch.manual_seed(1)
inputs = torch.randn(46, 6)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
order = torch.Generator().manual_seed(2)
train = rankup.shard(DataLoader(data, batch_size=8, shuffle=True, generator=order))
held = DataLoader(data, batch_size=5)
one_by_one = DataLoader(data, batch_size=1)
model = torch.nn.Linear(6, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=9)
best, best_epoch = 0.0, 0
for epoch in range(4):
    found, wide = [], 0.0
    for step, (x, y) in enumerate(train):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        wide += spread(out.detach())
        # The draw of each rank decides about an evaluation that is shared.
        if step % 2 == 0:
            if rankup.broadcast(random.random() < 0.5):
                found.append(round(accuracy(held, model), 4))
    meter = AverageMeter()
    with torch.no_grad():
        for x, y in one_by_one:
            meter.update((model(x).argmax(1) == y).float().mean().item(), len(x))
    # By what each rank has reckoned by itself.
    if meter.avg > best:
        best_epoch = epoch
        best = meter.avg
        rankup.save0(model.state_dict(), "best.pt")
    scheduler.step(rankup.broadcast(wide))
    print(epoch, found, round(meter.avg, 4), best_epoch)
    if rankup.broadcast(wide > 1000):
        break
