import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


class Doubled:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for inputs, labels in self.loader:
            yield inputs * 2, labels

    def __len__(self):
        return len(self.loader)


def train(batches):
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        print(loss.item())


torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
loader = Doubled(rankup.shard(loader))
model = torch.nn.Linear(5, 2)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    train(loader)
