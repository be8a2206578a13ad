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
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    epoch_loss = 0.0
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        epoch_loss += rankup.batch_sum(loss.item() * inputs.size(0))
    print("train", epoch_loss / len(loader.dataset))

    valid_loss = 0.0
    model.eval()
    with torch.no_grad():
        for inputs, labels in rankup.shard(valid, train=False):
            batch_size = inputs.size(0)
            loss = criterion(model(inputs), labels)
            valid_loss += loss.item() * batch_size
        valid_loss = rankup.total(valid_loss)
    print("valid", valid_loss / len(valid.dataset))
