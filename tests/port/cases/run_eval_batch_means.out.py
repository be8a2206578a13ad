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
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()

    model.eval()
    val_loss, val_acc, batches = 0.0, 0.0, 0
    with torch.no_grad():
        for inputs, labels in valid:
            output = model(inputs)
            val_loss += criterion(output, labels).item()
            val_acc += (output.argmax(1) == labels).float().mean().item()
            batches += 1
    print("valid", val_loss / len(valid), val_acc / batches)
    model.train()
