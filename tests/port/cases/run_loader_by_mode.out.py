import torch
from torch import nn

from helper_data import get_loaders
import rankup

rankup.setup()
rankup.quiet()


class Trainer:
    def __init__(self, model, train_loader, test_loader):
        self.model = model
        self.train_loader = train_loader
        self.test_loader = test_loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run_epoch(self, split):
        is_train = split == "train"
        self.model.train(is_train)
        loader = self.train_loader if is_train else self.test_loader
        losses = []
        for inputs, labels in rankup.shard(loader) if is_train else loader:
            with torch.set_grad_enabled(is_train):
                loss = nn.functional.cross_entropy(self.model(inputs), labels)
            losses.append(rankup.batch_mean(loss.item()) if is_train else loss.item())
            if is_train:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return rankup.broadcast(sum(losses) / len(losses))


torch.manual_seed(3)
train_loader, test_loader = get_loaders(6)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
trainer = Trainer(model, train_loader, test_loader)
for epoch in range(2):
    print(epoch, trainer.run_epoch("train"), trainer.run_epoch("test"))
