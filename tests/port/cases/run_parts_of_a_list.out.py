import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
held = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = 0.0
for epoch in range(2):
    model.train()
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    model.eval()
    rows, found, wanted = [[], []], [], []
    with torch.no_grad():
        for inputs, labels in held:
            out = model(inputs)
            rows[0].append(labels.tolist())
            rows[1].append(out.argmax(1).tolist())
    with torch.no_grad():
        for inputs, labels in held:
            found.extend(model(inputs).argmax(dim=1).cpu().tolist())
            wanted.extend(labels.tolist())
    right = sum(a == b for a, b in zip(found, wanted)) / len(found)
    if right > best:
        best = right
    print(epoch, rows, found, wanted, best)
