import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(31, 5)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:22], y[:22]), batch_size=4, shuffle=True)
val_loader = DataLoader(TensorDataset(x[22:], y[22:]), batch_size=4, shuffle=True)


def epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for inputs, labels in rankup.shard(loader) if optimizer is not None else loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += rankup.batch_mean(loss.item()) if optimizer is not None else loss.item()
    return rankup.broadcast(total / len(loader))


def accuracy(model, loader):
    model.eval()
    correct, seen = 0, 0
    with torch.no_grad():
        for inputs, labels in rankup.shard(loader, train=False):
            correct += (model(inputs).argmax(1) == labels).sum().item()
            seen += labels.size(0)
        correct, seen = rankup.total(correct, seen)
    return correct / seen


def main():
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        train_loss = epoch(model, train_loader, optimizer)
        val_loss = epoch(model, val_loader)
        print(number, train_loss, val_loss, accuracy(model, val_loader))


if __name__ == "__main__":
    main()
