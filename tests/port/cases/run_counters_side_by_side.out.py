import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
x = torch.randn(46, 4)
y = (x.sum(1) > 0).long()
train = rankup.shard(DataLoader(TensorDataset(x[:30], y[:30]), batch_size=7, shuffle=True))
valid = DataLoader(TensorDataset(x[30:], y[30:]), batch_size=5)
model = nn.Linear(4, 2)
model = rankup.wrap(model)
opt = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    total, hits, n = 0.0, 0, 0
    for a, b in train:
        out = model(a)
        loss = F.cross_entropy(out, b)
        opt.zero_grad()
        rankup.backward(loss)
        opt.step()
        total = total + rankup.batch_sum(loss.item() * len(b))
        hits, n = hits + rankup.batch_sum((out.argmax(1) == b).sum().item()), n + rankup.batch_sum(len(b))
    print(epoch, total / n, hits / n)
    model.eval()
    vt = vn = 0
    with torch.no_grad():
        for a, b in rankup.shard(valid, train=False):
            vt = vt + F.cross_entropy(model(a), b).item() * len(b)
            vn = vn + len(b)
        vt, vn = rankup.total(vt, vn)
    model.train()
    print(epoch, vt / vn)
