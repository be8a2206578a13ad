import helper_evaluation as engine
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup


def run():
    data = TensorDataset(torch.randn(64, 8), torch.arange(64) % 4)
    train_loader = DataLoader(data, batch_size=8, shuffle=True)
    valid_loader = DataLoader(data, batch_size=8)
    model = nn.Linear(8, 4)
    model.to("cuda")
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 0
    for epoch in range(2):
        # rankup: the training loop is in helper_evaluation.py, which stays as it is: what it adds up, saves or returns is of this rank's part of the batches
        engine.train_epoch(model, rankup.shard(train_loader), optimizer)
        accuracy = rankup.broadcast(engine.accuracy(model, valid_loader))
        if accuracy > best:
            rankup.save0(model.state_dict(), "best.pt")
            best = accuracy


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    run()
