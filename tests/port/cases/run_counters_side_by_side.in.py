import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(46, 4)
y = (x.sum(1) > 0).long()
train = DataLoader(TensorDataset(x[:30], y[:30]), batch_size=7, shuffle=True)
valid = DataLoader(TensorDataset(x[30:], y[30:]), batch_size=5)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    total, hits, n = 0.0, 0, 0
    for a, b in train:
        out = model(a)
        loss = F.cross_entropy(out, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total = total + loss.item() * len(b)
        hits, n = hits + (out.argmax(1) == b).sum().item(), n + len(b)
    print(epoch, total / n, hits / n)
    model.eval()
    vt = vn = 0
    with torch.no_grad():
        for a, b in valid:
            vt = vt + F.cross_entropy(model(a), b).item() * len(b)
            vn = vn + len(b)
    model.train()
    print(epoch, vt / vn)
