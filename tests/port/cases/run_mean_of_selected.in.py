import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(22, 5)
y = torch.randn(22, 5)
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
model = nn.Linear(5, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, target in loader:
        known = target > 0
        loss = (model(inputs) - target).abs()[known].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
