import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(4)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))


def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes, losses = [], []
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        loss, size = loss.item(), len(inputs)
        sizes.append(rankup.batch_sum(size))
        losses.append(rankup.batch_sum(loss * size))
    print(sum(losses) / sum(sizes), sum(sizes))


model = nn.Linear(5, 2)
model = rankup.wrap(model)
fit(model)
model = model.to("cpu")
fit(model)
for width in (3, 4):
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))
    model = rankup.wrap(model)
    fit(model)
rankup.save0(model.state_dict(), "model.pt")
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
rankup.barrier()
model.load_state_dict(torch.load("model.pt", map_location=rankup.here))
print(sum(p.sum().item() for p in model.parameters()))
