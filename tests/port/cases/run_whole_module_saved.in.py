import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)

import argparse

args = argparse.Namespace(lr=0.1)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
torch.save(model, "model.pt")
torch.save({"model": model.state_dict(), "args": args}, "last.pt")
again = torch.load("model.pt", weights_only=False)
print(type(again).__name__, sum(p.sum().item() for p in again.parameters()))
