import torch
from torch import nn

from helper_data import get_loaders
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
train_loader, test_loader = get_loaders(6)
model = nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, labels in rankup.shard(train_loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    hits = 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            hits += (model(inputs).argmax(1) == labels).sum().item()
    print(epoch, hits / len(test_loader.dataset))
