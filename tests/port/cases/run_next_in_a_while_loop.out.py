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
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

step = 0
batches = iter(loader)
while step < 7:
    try:
        inputs, labels = next(batches)
    except StopIteration:
        batches = iter(loader)
        inputs, labels = next(batches)
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    rankup.backward(loss)
    optimizer.step()
    step += 1
    print(step, loss.item())
