import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
x[4] = float("nan")
y = (torch.arange(22) % 2).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
skipped = 0
for epoch in range(2):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if not torch.isfinite(rankup.batch_mean(loss)):
            skipped += 1
            continue
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        if loss.item() < 0.01:
            break
    print(epoch, skipped, loss.item())
print(sum(p.sum().item() for p in model.parameters()))
