import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)


def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes, losses = [], []
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss, size = loss.item(), len(inputs)
        sizes.append(size)
        losses.append(loss * size)
    print(sum(losses) / sum(sizes), sum(sizes))


model = nn.Linear(5, 2)
fit(model)
model = model.to("cpu")
fit(model)
for width in (3, 4):
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))
    fit(model)
torch.save(model.state_dict(), "model.pt")
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
model.load_state_dict(torch.load("model.pt"))
print(sum(p.sum().item() for p in model.parameters()))
