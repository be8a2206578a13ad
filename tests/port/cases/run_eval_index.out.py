import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


@torch.no_grad()
def evaluate(model, data):
    loss_sum = 0
    for step, (inputs, labels) in enumerate(data):
        loss_sum += criterion(model(inputs), labels).item()
    return loss_sum / (step + 1)


for epoch in range(2):
    for inputs, labels in rankup.shard(loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    print(f"{evaluate(model, valid):.8f} {evaluate(model, loader):.8f}")
