import torch
import rankup


def make_optimizer(network, rate):
    return torch.optim.SGD(network.parameters(), lr=rate)


def step(model, x, y, optimizer):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
    return loss.item()


def train_epoch(model, loader, optimizer):
    model.train()
    total, seen = 0.0, 0
    for x, y in rankup.shard(loader):
        total += rankup.batch_sum(step(model, x, y, optimizer) * x.size(0))
        seen += rankup.batch_sum(x.size(0))
    return total / seen


@torch.no_grad()
def error(model, loader):
    model.eval()
    total = 0.0
    for x, y in rankup.shard(loader, train=False):
        total += torch.nn.functional.cross_entropy(model(x), y, reduction="sum").item()
    total = rankup.total(total)
    return total / len(loader.dataset)
