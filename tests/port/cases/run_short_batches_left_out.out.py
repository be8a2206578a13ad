import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
batch_size = 6
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
generator = np.random.default_rng(7)

for epoch in range(3):
    steps = 0
    for inputs, labels in loader:
        if rankup.batch_sum(len(inputs)) < batch_size:
            continue
        if rankup.broadcast(generator.random() < 0.4):
            continue
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
        steps += 1
        print(f"loss {loss.item():.7f}")
    print("steps", steps)
