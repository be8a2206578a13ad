import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = torch.randn(22, 5)
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Linear(5, 5)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, target in loader:
        known = target > 0
        loss = (model(inputs) - target).abs()[known].mean()
        rankup.count(known.sum())
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    print(epoch, loss.item())
