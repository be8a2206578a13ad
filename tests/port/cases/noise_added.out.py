import torch
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
loader = rankup.shard(DataLoader(data, batch_size=8, shuffle=True))
torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0.0
for epoch in range(2):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        x = x + 0.1 * torch.rand(len(x), 6)
        z = x[:, :1]
        z = z + x.mean()
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        total += loss.item()
        running += loss.item()
        if step % 4 == 3:
            print(running / 4)
            running = 0.0
    print(epoch, total / len(loader))
