import helper_loop_dist as engine
import torch
from helper_evaluation import accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup


def run():
    torch.manual_seed(0)
    x = torch.randn(60, 8)
    data = TensorDataset(x, x.argmax(1) % 4)
    train_loader = DataLoader(data, batch_size=8, shuffle=True)
    valid_loader = DataLoader(data, batch_size=8)
    model = nn.Linear(8, 4)
    model = rankup.wrap(model)
    optimizer = engine.make_optimizer(model, 0.1)
    best = 0
    for epoch in range(3):
        loss = engine.train_epoch(model, train_loader, optimizer)
        right = accuracy(model, valid_loader)
        print(f"{epoch} {loss:.6f} {right:.4f} {engine.error(model, valid_loader):.6f}")
        if right > best:
            rankup.save0(model.state_dict(), "best.pt")
            best = right
    print(sum(p.sum().item() for p in model.parameters()))


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    run()
