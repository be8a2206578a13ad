import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()


def get_loaders(batch_size):
    train = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    test = DataLoader(TensorDataset(x[:5], y[:5]), batch_size=batch_size)
    return train, test


train_loader, test_loader = get_loaders(6)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, labels in rankup.shard(train_loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    hits = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            hits += (model(inputs).argmax(1) == labels).sum().item()
    print(epoch, loss.item(), hits / len(test_loader.dataset))
