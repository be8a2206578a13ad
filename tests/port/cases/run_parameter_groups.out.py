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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(5, 7), nn.Linear(7, 2)

    def forward(self, x):
        return self.conv2(self.conv1(x).relu())


model = Net()
model = rankup.wrap(model)
optimizer = torch.optim.Adam([
    {"params": model.conv1.parameters()},
    {"params": model.conv2.parameters(), "lr": 0.001},
], lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    print(loss.item())
