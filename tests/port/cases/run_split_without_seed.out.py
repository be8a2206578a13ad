import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()

import random
from torch.utils.data import random_split

train_set, val_set = random_split(TensorDataset(x, y), [15, 7])
order = list(range(7))
random.shuffle(order)
loader = rankup.shard(DataLoader(train_set, batch_size=6, shuffle=True))
valid = DataLoader(val_set, batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    total = 0
    with torch.no_grad():
        for inputs, labels in valid:
            total += criterion(model(inputs), labels).item() * len(labels)
    print(order, total / len(val_set))
