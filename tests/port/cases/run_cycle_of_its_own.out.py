import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(31, 5)
y = (x.sum(1) > 0).long()


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


class Trainer:
    def __init__(self, model, data, held):
        self.model = model
        order = torch.Generator().manual_seed(1)
        self.batches = cycle(rankup.shard(DataLoader(data, batch_size=7, shuffle=True, generator=order)))
        self.held = cycle(DataLoader(held, batch_size=9))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self):
        for step in range(8):
            self.optimizer.zero_grad()
            total = 0.0
            for _ in range(2):
                inputs, labels = next(self.batches)
                loss = nn.functional.cross_entropy(self.model(inputs), labels) / 2
                rankup.backward(loss)
                total += loss.item()
            self.optimizer.step()
            print(step, total)
            if step % 4 == 3:
                self.model.eval()
                with torch.no_grad():
                    inputs, labels = next(self.held)
                    print("held", nn.functional.cross_entropy(self.model(inputs), labels).item())
                self.model.train()


model = nn.Linear(5, 2)
model = rankup.wrap(model)
Trainer(model, TensorDataset(x[:22], y[:22]), TensorDataset(x[22:], y[22:])).train()
