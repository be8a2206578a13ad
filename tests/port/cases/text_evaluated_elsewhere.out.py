import torch
from helper_evaluation import accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

data = TensorDataset(torch.randn(64, 8), torch.arange(64) % 4)
train_loader = rankup.shard(DataLoader(data, batch_size=8, shuffle=True))
valid_loader = DataLoader(data, batch_size=8)
model = nn.Linear(8, 4)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max")
for epoch in range(2):
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    scheduler.step(rankup.broadcast(accuracy(model, valid_loader)))
