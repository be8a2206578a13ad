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
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)


class AverageMeter:
    """Sum, count and mean of what it is given."""

    def __init__(self):
        self.sum, self.count, self.avg = 0, 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    losses = AverageMeter()
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        losses.update(loss.item(), rankup.batch_sum(inputs.size(0)))
    print(f"train {losses.avg:.8f}")

    model.eval()
    losses = AverageMeter()
    with torch.no_grad():
        for inputs, labels in valid:
            loss = criterion(model(inputs), labels)
            losses.update(loss.item(), inputs.size(0))
    print(f"valid {losses.avg:.8f}")
