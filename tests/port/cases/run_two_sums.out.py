import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
mask = torch.rand(22, 5) > 0.4
loader = rankup.shard(DataLoader(TensorDataset(x, mask), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def reconstruction(out, target, seen):
    return (out - target).pow(2).masked_select(seen).sum()


for epoch in range(2):
    total, seen = 0.0, 0
    for inputs, known in loader:
        out = model(inputs)
        first = reconstruction(out, inputs, known)
        second = F.l1_loss(out, inputs, reduction="sum")
        loss = first + 0.1 * second
        optimizer.zero_grad()
        rankup.backward(loss, summed=True)
        optimizer.step()
        total += loss.item()
        seen += rankup.batch_sum(inputs.size(0))
    print(epoch, total / seen)
