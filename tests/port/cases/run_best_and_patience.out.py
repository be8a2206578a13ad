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
valid = DataLoader(TensorDataset(x[:13], y[:13]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

best = float("inf")
patience = 0
for epoch in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    total, n = 0.0, 0
    with torch.no_grad():
        for inputs, labels in valid:
            total += nn.functional.cross_entropy(model(inputs), labels, reduction="sum").item()
            n += len(labels)
    val_loss = total / n
    if rankup.broadcast(val_loss < best):
        best, patience = val_loss, 0
        rankup.save0(model.state_dict(), "best.pt")
    else:
        patience += 1
        if rankup.broadcast(patience > 1):
            print("stopped early")
            break
    print(epoch, val_loss, best)

rankup.barrier()
model.load_state_dict(torch.load("best.pt", map_location=rankup.here))
print(sum(p.sum().item() for p in model.parameters()))
