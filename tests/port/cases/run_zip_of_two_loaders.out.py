import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(5)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
labelled = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
unlabelled = rankup.shard(DataLoader(TensorDataset(torch.randn(22, 5)), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    for (inputs, labels), (others,) in zip(labelled, unlabelled):
        optimizer.zero_grad()
        quiet = model(others).softmax(1).var(1).mean()
        loss = criterion(model(inputs), labels) + 0.1 * quiet
        rankup.backward(loss)
        optimizer.step()
        print(epoch, loss.item())
