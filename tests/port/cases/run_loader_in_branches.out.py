import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
kind = "plain"

if kind == "scaled":
    train_loader = DataLoader(TensorDataset(x / 2, y), batch_size=4, shuffle=True)
elif kind == "plain":
    train_loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)

model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def train(loader):
    seen = 0
    for inputs, labels in rankup.shard(loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        seen += rankup.batch_sum(labels.size(0))
        print(f"loss {loss.item():.7f}")
    print("seen", seen)


train(train_loader)
other_loader = DataLoader(TensorDataset(x[:9], y[:9]), batch_size=3, shuffle=True)
train(other_loader)
