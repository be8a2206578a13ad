import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(24, 1, 5)
y = (x.sum((1, 2)) > 0).long().view(24, 1)
batch_size = 6
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True))
test_loader = DataLoader(TensorDataset(x[:12], y[:12]), batch_size=batch_size)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))

    def forward(self, inputs):
        hidden = self.body(inputs.squeeze(1))
        return hidden, inputs


model = Net()
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
seen, last, kept = 0, 0, 0
for epoch in range(2):
    torch.manual_seed(epoch)
    for i, data in enumerate(loader):
        points, target = data
        target = target[:, 0]
        points = points.float()
        points, target = points.to("cpu"), target.to("cpu")
        optimizer.zero_grad()
        pred, _ = model(points)
        loss = criterion(pred, target)
        rankup.backward(loss)
        optimizer.step()
        choice = pred.data.max(1)[1]
        correct = choice.eq(target.data).cpu().sum()
        print(f"loss {loss.item():.6f} accuracy {correct.item() / float(batch_size):.4f}")
        seen += rankup.batch_sum(points.size(0))
        if i % 2:
            interval, last = seen - last, seen
            kept += interval
            rate = kept / 10
            print(f"interval {interval} kept {kept} rate {rate:.2f}")
            _, data = next(enumerate(test_loader))
            points, target = data
            target = target[:, 0]
            with torch.no_grad():
                pred, _ = model(points)
            correct = pred.max(1)[1].eq(target).sum()
            print(f"of a test batch {correct.item() / float(batch_size):.4f}")
