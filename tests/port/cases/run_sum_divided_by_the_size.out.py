import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = x.sum(1, keepdim=True)
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for inputs, targets in loader:
    n = inputs.size(0)
    total = F.mse_loss(model(inputs), targets, reduction="sum")
    loss = (1.0 / n) * total
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
    print(f"inverse {loss.item():.6f}")

for inputs, targets in loader:
    loss = (model(inputs) - targets).pow(2).sum()
    loss = loss / len(inputs)
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
    print(f"given again {loss.item():.6f}")

for inputs, targets in loader:
    loss = F.mse_loss(model(inputs), targets, reduction="sum").div(len(inputs))
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
    print(f"method {loss.item():.6f}")
