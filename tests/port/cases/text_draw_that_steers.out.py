import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

random.seed(1)
torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
steps = 0
for epoch in range(2):
    for inputs, labels in loader:
        if rankup.broadcast(random.random() < 0.3):
            continue
        for _ in range(rankup.broadcast(random.randint(1, 3))):
            loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            rankup.backward(loss)
            optimizer.step()
            steps += 1
    print(epoch, steps)
print(sum(p.sum().item() for p in model.parameters()))
