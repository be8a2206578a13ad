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


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.projection = nn.Linear(5, 6), nn.Linear(6, 2)
        self.width = 6

    def encode(self, x):
        return self.encoder(x).tanh()

    def project(self, h):
        return self.projection(h)


model = Seq2Seq()
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, labels in loader:
        hidden = model.encode(inputs)
        loss = nn.functional.cross_entropy(model.project(hidden), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    print(model.width, loss.item())
