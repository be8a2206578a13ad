import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()


class Trainer:
    def __init__(self, model, optimizer, train_loader, valid_loader):
        self.model, self.optimizer = model, optimizer
        self.loaders = {"train": train_loader, "valid": valid_loader}
        self.criterion = nn.CrossEntropyLoss()

    def run_epoch(self, phase):
        training = phase == "train"
        self.model.train(training)
        total, seen, right = 0.0, 0, 0
        context = torch.enable_grad() if training else torch.no_grad()
        with context:
            for x, y in rankup.shard(self.loaders[phase], train=True) if training else self.loaders[phase]:
                out = self.model(x)
                loss = self.criterion(out, y)
                total += rankup.batch_mean(loss.item()) * rankup.batch_sum(x.size(0)) if training else loss.item() * x.size(0)
                seen += rankup.batch_sum(x.size(0)) if training else x.size(0)
                right += rankup.batch_sum((out.argmax(1) == y).sum().item()) if training else (out.argmax(1) == y).sum().item()
                if not training:
                    continue
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return rankup.broadcast(total / seen), rankup.broadcast(right / seen)


def predict(model, loader):
    model.eval()
    found = []
    with torch.no_grad():
        for x, _ in loader:
            found.append(model(x).argmax(1))
    return torch.cat(found)


torch.manual_seed(4)
x = torch.randn(31, 5)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:22], y[:22]), batch_size=4, shuffle=True)
valid_loader = DataLoader(TensorDataset(x[22:], y[22:]), batch_size=4)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), train_loader, valid_loader)
for epoch in range(2):
    print(epoch, trainer.run_epoch("train"), trainer.run_epoch("valid"))
    for phase, loader in [("train", train_loader), ("valid", valid_loader)]:
        print(phase, len(loader))
print(predict(model, valid_loader).tolist())
