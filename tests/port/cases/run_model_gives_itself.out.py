import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


def begin(part):
    if isinstance(part, nn.Linear):
        nn.init.constant_(part.weight, 0.1)


x = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
loader = rankup.shard(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6))
model = nn.Linear(3, 1)
try:
    model.load_state_dict(torch.load("never_written.pt", map_location=rankup.here))
    begun = 3
except FileNotFoundError:
    begun = 0
    model = model.apply(begin)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(begun, 3):
    model = model.train()
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        print(epoch, loss.item())
    model = model.eval()
