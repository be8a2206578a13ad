import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(1)
x = torch.randn(24, 3)
loader = rankup.shard(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True))
for fold in range(2):
    model = nn.Linear(3, 1)
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    print(fold, loss.item())
    try:
        model = torch.load("never_written.pt", map_location=rankup.here)
    except FileNotFoundError:
        model = nn.Linear(3, 1)
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    print(fold, loss.item())
