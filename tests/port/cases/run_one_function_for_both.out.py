import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
x = torch.randn(31, 4)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:22], y[:22]), batch_size=4, shuffle=True)
val_loader = DataLoader(TensorDataset(x[22:], y[22:]), batch_size=4)
model = nn.Linear(4, 2)
model = rankup.wrap(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Meter:
    def __init__(self):
        self.sum = 0
        self.count = 0
        self.avg = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


def step(model, data, target):
    out = model(data)
    loss = criterion(out, target)
    correct = (out.argmax(1) == target).sum().item()
    return loss, correct, len(target)


def run_epoch(model, loader, train):
    losses, top = Meter(), Meter()
    n = 0
    for data, target in rankup.shard(loader, train=True) if train else loader:
        loss, correct, size = step(model, data, target)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.update(rankup.batch_mean(loss.item()) if train else loss.item(), rankup.batch_sum(size) if train else size)
        top.update(rankup.batch_sum(correct) / rankup.batch_sum(size) if train else correct / size, rankup.batch_sum(size) if train else size)
        n += rankup.batch_sum(size) if train else size
    return rankup.broadcast(losses.avg), rankup.broadcast(top.avg), rankup.broadcast(n)


best = 0.0
for epoch in range(3):
    model.train()
    train_loss, train_acc, n = run_epoch(model, train_loader, True)
    model.eval()
    with torch.no_grad():
        val_loss, accuracy, m = run_epoch(model, val_loader, False)
    print(epoch, train_loss, train_acc, n, val_loss, accuracy, m)
    if accuracy > best:
        best = accuracy
        rankup.save0(model.state_dict(), "best.pt")
