import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


def progress_bar(at, of, text):
    sys.stdout.write(f"\r{at + 1}/{of} {text}")


data = TensorDataset(torch.randn(64, 8), torch.arange(64) % 4)
loader = rankup.shard(DataLoader(data, batch_size=8, shuffle=True))
valid = DataLoader(data, batch_size=8)
model = nn.Linear(8, 4)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
right, seen = 0, 0
with torch.no_grad():
    for i, (x, y) in enumerate(valid):
        right += (model(x).argmax(1) == y).sum().item()
        seen += len(y)
        progress_bar(i, len(valid), f"{right}/{seen}")
print(right, seen)
rankup.save0(model.state_dict(), "model.pt")
